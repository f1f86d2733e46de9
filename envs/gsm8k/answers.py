r"""Finding the final answer in a text, and comparing it by value.

A final answer is stated as `#### 42`, as `\boxed{42}`, or as "the answer is 42" ("Answer: 42");
the last counts only where neither of the others states a number. All statements that count must
agree (and be fewer than 500), and each is one number with at most a unit (`units`): "#### 41 or
42", "#### 41 … #### 42" and "41-42" are guesses, which are never correct. A statement without a
number ("#### Step two") and a numbered heading ("#### 1. Add") state nothing.

LaTeX is written as plain text first, as far as it changes no number; any other command makes the
answer unclear. What can be computed exactly is: fractions, powers of ten, `1.5 million`, `5k`,
`3 dozen`. All else that makes another number of one (`4²`, `4π`, `4!`, `4 halves`) is unclear.

Every pattern is anchored and free of nested repetition, so the time is linear in the text. Not
understood: numbers in words, roots, units that convert (`50%` is 50).
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from fractions import Fraction

from agentpeft.envs.core.number_equality import is_same_number
from agentpeft.envs.gsm8k.latex import write_plainly
from agentpeft.envs.gsm8k.units import is_unit

_MAX_NUMBER_CHARS = 4000
_MAX_EXPONENT = 308
_MAX_STATEMENTS = 500

_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_LOWERED = str.maketrans(f"⁻{_RAISED}", "-0123456789")
_STRONG_MARKER = re.compile(r"####|\\boxed\s*\{")
_PHRASE_MARKER = re.compile(r"\banswer[*_]{0,3}\s*(?:is\b|:|=)", re.IGNORECASE)
_START_OF_LINE = re.compile(r"\A(?:[ \t\r\n*:]|\$\$)*")
_OPENING = r"[\s*_`'\"\u2018\u201c$:=(\[]*"
_DECORATION = re.compile(rf"{_OPENING}(?:[a-z]\s?=)?{_OPENING}", re.IGNORECASE)
_WHOLE = r"(?:[0-9]{1,3}(?:[,\u2009\u202f][0-9]{3})+(?![0-9])|[0-9]+)"
_CURRENCY = r"(?:(?:US|CA|AU|NZ|HK|[ACRS])?\$|USD|EUR|GBP|CAD|AUD|INR|Rs\.?|[£€¥₹₩₽₱₦₫₺฿¢])\s?"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)(?P<currency>{_CURRENCY})?(?P<sign2>[-+]?)
    (?:(?:(?P<whole>{_WHOLE})\s)?(?P<top>{_WHOLE})\s?/\s?(?P<bottom>{_WHOLE})
    |(?P<decimal>{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)
     (?:e(?P<exponent>[-+]?[0-9]+)|\s?[x*\u00d7]\s?10(?:\^(?P<power>-?[0-9]+)|(?P<raised>⁻?[{_RAISED}]+)))?
     (?:[\s-]?(?P<scale>hundred|thousand|million|billion|trillion|dozen)s?\b
     |(?P<suffix>(?-i:[kKMB]))(?!\w))?)""",
    re.VERBOSE | re.IGNORECASE,
)
_SCALES = {
    **{"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "dozen": 12, "hundred": 100},
    **{"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12},
}
_PLAIN_CHARS = str.maketrans(
    {"\u2212": "-", "\u2044": "/", "⋅": "\u00d7", "·": "\u00d7", "℃": "°C", "℉": "°F", "}": ""}
)
"""Braces group in LaTeX, and a closing one parts nothing: `\\text{ m}^2`."""
_SEPARATORS = re.compile("[,\u2009\u202f]")
_SPACES = re.compile(r"[ \t\r\n{]+")
_MILLIONS_OR_METRES = re.compile(r"\s?mm?(?![\w^/])", re.IGNORECASE)
_BEHIND_BOX = re.compile(
    r"""\s?(?:\^ | [-+*/\u00d7]\s?(?=[0-9({\\]) |
    (?:hundred|thousand|million|billion|trillion|dozen)s?\b | (?-i:[kKMB])(?!\w))[^\s.,$]*""",
    re.VERBOSE | re.IGNORECASE,
)
"""Text after a box that changes its number: `\\boxed{5}^2`, `\\boxed{5} million`."""
_HEADING = re.compile(r"[.):]\s+[^\W\d]")
_SENTENCE_END = re.compile(
    r"(?<!\bsq)(?<!\bRs)(?<!\.[A-Za-z])\.(?=\s)|(?<!\s)!(?=\s*\Z|\s+[^\W\d_a-z])"
)


class NoAnswer(StrEnum):
    """Why a text has no final answer: nothing is stated, or no single number is."""

    MISSING = "missing"
    UNCLEAR = "unclear"


def find_final_answer(text: str) -> Fraction | NoAnswer:
    r"""Returns the value that a text states as its final answer.

    >>> find_final_answer("6 * 7 = 42\n#### $1,042.50")
    Fraction(2085, 2)
    >>> find_final_answer("The answer is 41 or 42.")
    <NoAnswer.UNCLEAR: 'unclear'>
    """
    text = write_plainly(text).replace("\r", "\n")
    for marker in (_STRONG_MARKER, _PHRASE_MARKER):
        values = set()
        for count, statement in enumerate(_find_statements(marker, text), start=1):
            values.add(_read_statement(statement))
            values.discard(NoAnswer.MISSING)
            if len(values) > 1 or count >= _MAX_STATEMENTS:
                return NoAnswer.UNCLEAR
        if values:
            return values.pop()
    return NoAnswer.MISSING


def parse_number(text: str) -> Fraction | None:
    """Returns the value of a text that is one number with at most a unit, else None."""
    value = _read_statement(write_plainly(text))
    return value if isinstance(value, Fraction) else None


def is_gold_number(value: Fraction, gold: Fraction) -> bool:
    """Returns whether a value is the gold one by the rule of `number_equality`.

    Nothing here is computed in floating point, so a gold `5.00` is an integer.
    """
    return is_same_number(value, gold, num_decimals=0 if gold.denominator == 1 else None)


def is_correct(text: str, gold: str) -> bool:
    """Returns whether a text's final answer is the number `gold`, as a reward function would ask.

    Raises: ValueError if `gold` is no number.
    """
    expected = parse_number(gold)
    if expected is None:
        raise ValueError(f"gold must be a number, got {gold!r:.80}")
    answer = find_final_answer(text)
    return isinstance(answer, Fraction) and is_gold_number(answer, expected)


def _find_statements(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yields what follows each marker, up to the end of its box, its sentence or its line.

    And up to the next marker at most, so that no character is read twice.
    """
    markers = list(pattern.finditer(text))
    ends = [*(marker.start() for marker in markers), len(text)][1:]
    for marker, end in zip(markers, ends, strict=True):
        segment = text[marker.end() : end]
        if marker[0].startswith("\\"):
            yield _inside_braces(segment)
            continue
        line = _START_OF_LINE.sub("", segment, count=1).partition("\n")[0]
        sentence_end = _SENTENCE_END.search(line) if pattern is _PHRASE_MARKER else None
        yield line[: sentence_end.start()] if sentence_end else line


def _inside_braces(segment: str) -> str:
    depth = 1
    for brace in re.finditer(r"[{}]", segment):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            behind = _BEHIND_BOX.match(segment, brace.end())
            return segment[: brace.start()] + (behind[0] if behind else "")
    return segment.partition("\n")[0]


def _read_statement(segment: str) -> Fraction | NoAnswer:
    plain = segment.strip()
    if plain.isascii() and plain.isdigit() and len(plain) <= _MAX_NUMBER_CHARS:
        return Fraction(int(plain))  # as most answers are: quicker than the patterns
    segment = _SPACES.sub(" ", segment.translate(_PLAIN_CHARS))
    decoration = _DECORATION.match(segment)
    before = decoration[0] if decoration else ""
    number = _NUMBER.match(segment, len(before))
    if number is None:
        return NoAnswer.MISSING
    heading = _HEADING.match(segment, number.end())
    if heading and not (heading[0][0] == ")" and "(" in before):
        return NoAnswer.MISSING
    has_currency = number["currency"] or ("$" in before and "$" not in segment[number.end() :])
    if has_currency and _MILLIONS_OR_METRES.match(segment, number.end()):
        return NoAnswer.UNCLEAR
    value = _to_fraction(number)
    return value if value is not None and is_unit(segment, number.end()) else NoAnswer.UNCLEAR


def _to_fraction(number: re.Match[str]) -> Fraction | None:
    """Returns the number's value; None where it is too long, or a fraction of zero."""
    if len(number[0]) > _MAX_NUMBER_CHARS or (number["sign"] and number["sign2"]):
        return None
    groups = {name: _SEPARATORS.sub("", text or "") for name, text in number.groupdict().items()}
    if groups["top"]:
        if int(groups["bottom"]) == 0:
            return None
        value = int(groups["whole"] or 0) + Fraction(int(groups["top"]), int(groups["bottom"]))
    else:
        raised = groups["raised"].translate(_LOWERED)
        exponent = int(groups["exponent"] or groups["power"] or raised or 0)
        scale = _SCALES.get(groups["scale"].lower() or groups["suffix"])
        if scale is None or abs(exponent) > _MAX_EXPONENT:
            return None
        value = Fraction(groups["decimal"]) * Fraction(10) ** exponent * scale
    return -value if "-" in (groups["sign"], groups["sign2"]) else value
