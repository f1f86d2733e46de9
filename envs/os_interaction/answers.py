"""When an agent's answer is the expected one: text, numbers, names in any order, sizes."""

import re
from dataclasses import dataclass
from math import isclose
from typing import Literal

from agentpeft.envs.errors import DataError

AnswerKind = Literal["text", "number", "names", "size", "regex"]

_TOLERANCE = 1e-6
_SIZE_TOLERANCE = 0.025
"""A unit of 1,000 for one of 1,024 is 2.4 % off."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,300})?(?:\.\d{0,300})?(?:[eE][-+]?\d{1,2})?")
_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*(bytes?|[KMGT]?i?B?)", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s,;]+")


@dataclass(frozen=True)
class ExpectedAnswer:
    """An answer's value and how it is compared.

    "text": equal but for space around it and a pair of quotes; two numbers within 1e-6, integers
    equal. "number": the same, where the expected text must be a number. "names": the same names,
    parted by space, commas or semicolons, in any order. "size": bytes or du's `4.0K`, within 2.5 %.
    "regex": the pattern is found in the answer.
    """

    value: str
    kind: AnswerKind = "text"

    def __post_init__(self) -> None:
        """Raises: DataError where the pattern is none."""
        if self.kind == "regex":
            try:
                re.compile(self.value)
            except re.error as error:
                raise DataError(f"not a pattern ({error}): {self.value!r:.60}") from None

    def allows(self, answer: str) -> bool:
        """Returns whether an answer is right; an empty one never is.

        >>> ExpectedAnswer("3").allows(" 3.0 ")
        True
        """
        answer, value = answer.strip(), self.value.strip()
        if not answer or not value:
            return False
        if self.kind == "regex":
            return re.search(self.value, answer) is not None
        plain = _unquote(answer)
        if self.kind == "names":
            return sorted(_SEPARATORS.split(plain)) == sorted(_SEPARATORS.split(value))
        if self.kind == "size":
            return _is_same_size(plain, value)
        return value in (answer, plain) or _is_same_number(plain, value)


def _unquote(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\"`"
    return text[1:-1].strip() if is_quoted else text


def _is_same_number(answer: str, value: str) -> bool:
    numbers = [_number_of(text) for text in (answer, value)]
    if None in numbers:
        return False
    first, second = (float(number or 0) for number in numbers)
    if first == second:
        return True
    are_integers = all(first_or_second.is_integer() for first_or_second in (first, second))
    return not are_integers and isclose(first, second, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _number_of(text: str) -> float | None:
    is_number = _NUMBER.fullmatch(text) is not None and any(map(str.isdigit, text))
    return float(text.replace(",", "")) if is_number else None


def _is_same_size(answer: str, value: str) -> bool:
    return any(
        isclose(first, second, rel_tol=_SIZE_TOLERANCE)
        for first in _sizes_of(answer)
        for second in _sizes_of(value)[:1]
    )


def _sizes_of(text: str) -> list[float]:
    """Returns the bytes that a size may mean: with units of 1,024, then of 1,000."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return []
    unit = match[2][:1].upper()
    power = "KMGT".index(unit) + 1 if unit and unit in "KMGT" else 0
    return [float(match[1]) * base**power for base in (1024, 1000)]
