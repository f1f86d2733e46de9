"""When an agent's answer is the expected one: text, numbers, names in any order, sizes."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from agentpeft.envs.core.linear_patterns import compile_linear
from agentpeft.envs.core.number_equality import is_same_written_number
from agentpeft.envs.core.spaces import to_utf8

AnswerKind = Literal["text", "number", "names", "size", "regex"]

_SIZE_TOLERANCE = Fraction(25, 1000)
"""A unit of 1,000 for one of 1,024 is 2.4 % off."""
_NUMBER = re.compile(
    r"[-+]?(?=\.?[0-9])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,300})?(?:\.[0-9]{0,300})?"
    r"(?:[eE][-+]?[0-9]{1,2})?"
)
_PLAIN_NUMBER = re.compile(
    r"[-+]?(?:0|[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,300})?(?:(?<=[0-9])|(?=\.))"
    r"(?:\.[0-9]{0,299}[1-9])?"
)
"""A number that is surely one: `1e2` and `007` may be names, and `1.10` a version."""
_SIZE = re.compile(
    r"([0-9]{1,30}(?:\.([0-9]{1,30}))?)\s*(?:bytes?|([KMGT]?)(i?)(B?))",
    re.ASCII | re.IGNORECASE,
)
_SEPARATORS = re.compile(r"[\s,;]+")


@dataclass(frozen=True)
class ExpectedAnswer:
    """An answer's value and how it is compared.

    "text": equal but for space around it and a pair of quotes; two numbers by the rule of
    `number_equality`, where the expected one is written plainly, not as `1e2`, `007` or `1.10`.
    "number": the same, where the expected text must be a number in any notation. "names": the same
    names, parted by space, commas or semicolons, in any order. "size": bytes, which are exact, or
    as du rounds them (`4.0K`). "regex": the pattern is found in the answer, in linear time.
    """

    value: str
    kind: AnswerKind = "text"

    def __post_init__(self) -> None:
        """Raises: DataError where the pattern is none, or needs what RE2 lacks."""
        if self.kind == "regex":
            compile_linear(self.value)

    def allows(self, answer: str) -> bool:
        """Returns whether an answer is right; an empty one never is.

        >>> ExpectedAnswer("3").allows(" 3.0 ")
        True
        """
        answer, value = answer.strip(), self.value.strip()
        if not answer or not value:
            return False
        if self.kind == "regex":
            return compile_linear(self.value).search(to_utf8(answer)) is not None
        plain = _unquote(answer)
        if self.kind == "names":
            return sorted(_SEPARATORS.split(plain)) == sorted(_SEPARATORS.split(value))
        if self.kind == "size":
            return _is_same_size(plain, value)
        if value in (answer, plain):
            return True
        is_number = self.kind == "number" or _PLAIN_NUMBER.fullmatch(value)
        return bool(is_number) and _is_same_number(plain, value)


def _unquote(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\"`"
    return text[1:-1].strip() if is_quoted else text


def _is_same_number(answer: str, value: str) -> bool:
    if not (_NUMBER.fullmatch(answer) and _NUMBER.fullmatch(value)):
        return False
    return is_same_written_number(answer.replace(",", ""), value.replace(",", ""))


def _is_same_size(answer: str, value: str) -> bool:
    """Returns whether a size is the expected one, as far as the coarser of the two tells.

    du rounds up and others to the nearest, so they may differ by less than one step of the last
    digit (`4.0K` is 4,096 bytes, and not `4.1K`), and by 2.5 % at most (`2M` is not `1.5M`).
    """
    for expected, expected_step in _compute_sizes(value)[:1]:
        for num_bytes, step in _compute_sizes(answer):
            difference = abs(num_bytes - expected)
            is_near = difference <= _SIZE_TOLERANCE * expected
            if difference == 0 or (is_near and difference < max(step, expected_step)):
                return True
    return False


def _compute_sizes(text: str) -> list[tuple[Fraction, Fraction]]:
    """Returns what a size may mean: its bytes, and those of a step of its last digit (0: exact).

    First with units of 1,024, then of 1,000 where kB or k is written.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        return []
    number, decimals, unit, binary, byte = (group or "" for group in match.groups())
    power = "KMGT".index(unit.upper()) + 1 if unit else 0
    bases = (1024, 1000) if (byte or unit == "k") and not binary else (1024,)
    last_digit = Fraction(1, 10 ** len(decimals)) if power else Fraction(0)
    return [(Fraction(number) * base**power, last_digit * base**power) for base in bases]
