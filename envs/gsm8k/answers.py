r"""Finding the final answer in a text, and comparing it by value.

A final answer is stated as `#### 42`, as `\boxed{42}`, or as "the answer is 42" ("Answer: 42");
the last counts only where neither of the others states a number. All statements that count must
agree (and be fewer than 500), and each is one number with at most a unit: "#### 41 or 42",
"#### 41 … #### 42" and "41-42" are guesses, which are never correct. A statement without a number
("#### Step two") and a numbered heading ("#### 1. Add") state nothing. What makes another number of
one (`4²`, `4ⁿ`, `4π`, `4万`, "4 or so") makes it unclear.

Every pattern is anchored and free of nested repetition, so the time is linear in the text. Not
understood: numbers in words, roots, units that convert (`3 dozen` is 3).
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from fractions import Fraction
from unicodedata import decomposition

from agentpeft.envs.core.number_equality import is_same_number

_MAX_NUMBER_CHARS = 4000
_MAX_EXPONENT = 308
_MAX_UNIT_CHARS = 80
_MAX_STATEMENTS = 500

_STRONG_MARKER = re.compile(r"####|\\(boxed)\s*\{")
_PHRASE_MARKER = re.compile(r"\banswer\*{0,2}\s*(?:is\b|:|=)", re.IGNORECASE)
_DECORATION = re.compile(r"(?:[a-z]\s?=)?[\s*$:=(\[{]*", re.IGNORECASE)
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)[$£€¥₹]?(?P<sign2>-?)
    (?:(?:(?P<whole>{_WHOLE})\s)?(?P<top>{_WHOLE})\s?/\s?(?P<bottom>{_WHOLE})
    |(?P<decimal>{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)
     (?:e(?P<exponent>[-+]?[0-9]+)|\s?[x*]\s?10\^\{{?(?P<power>-?[0-9]+)\}}?)?
     (?:\s(?P<scale>hundred|thousand|million|billion|trillion)\b)?)""",
    re.VERBOSE | re.IGNORECASE,
)
_SCALES = {"": 0, "hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_HEADING = re.compile(r"[.):]\s+[^\W\d]")
_SENTENCE_END = re.compile(r"[.!](?=\s|\Z)")
_UNIT_PUNCTUATION = frozenset(" \t,%°º'\u2019\"/.()[]{}*$£€¥₹-")
_UNIT_POWERS = frozenset("²³")
_HEDGES = re.compile(
    r"\b(?:or|and|not|between|either|maybe|perhaps|possibly|half|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|million|billion|trillion)\b",
    re.IGNORECASE,
)

_LATEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_LATEX_FRACTION = re.compile(r"([0-9]?)\\[dt]?frac\s*\{(-?[0-9]+)\}\s*\{([0-9]+)\}")
_LATEX_SPACE = re.compile(r"\\[()\[\],!;: ]")
_PLAIN_CHARS = str.maketrans({"\u2212": "-", "\u2044": "/", "\u00d7": "x"})
_PLAIN_WORDS = {r"\times": "x", r"\cdot": "x", "{,}": ",", r"\$": "$", r"\%": "%"}


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
    text = _without_latex(text)
    for segments in (_strong_segments(text), _phrase_segments(text)):
        values = set()
        for count, segment in enumerate(segments):
            value = _read_statement(segment)
            if value is not NoAnswer.MISSING:
                values.add(value)
            if len(values) > 1 or count + 1 >= _MAX_STATEMENTS:
                return NoAnswer.UNCLEAR
        if values:
            return values.pop()
    return NoAnswer.MISSING


def parse_number(text: str) -> Fraction | None:
    """Returns the value of a text that is one number with at most a unit, else None."""
    value = _read_statement(_without_latex(text))
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


def _without_latex(text: str) -> str:
    text = text.translate(_PLAIN_CHARS)
    if "\\" not in text and "{,}" not in text:
        return text
    for old, new in _PLAIN_WORDS.items():
        text = text.replace(old, new)
    text = _LATEX_TEXT.sub(r" \1 ", _LATEX_SPACE.sub("", text))
    return _LATEX_FRACTION.sub(lambda m: f"{m[1]}{' ' if m[1] else ''}{m[2]}/{m[3]}", text)


def _strong_segments(text: str) -> Iterator[str]:
    """Yields what follows each `####` or boxed marker, up to the line's or the box's end."""
    for marker, segment in _split(_STRONG_MARKER, text):
        yield _inside_braces(segment) if marker[1] else _first_line(segment)


def _phrase_segments(text: str) -> Iterator[str]:
    """Yields what follows each "answer is", up to the end of the sentence or the line."""
    for _, segment in _split(_PHRASE_MARKER, text):
        line = _first_line(segment)
        sentence_end = _SENTENCE_END.search(line)
        yield line[: sentence_end.start()] if sentence_end else line


def _split(pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yields each marker with the text up to the next one, so that no character is read twice."""
    markers = list(pattern.finditer(text))
    ends = [*(marker.start() for marker in markers), len(text)][1:]
    for marker, end in zip(markers, ends, strict=True):
        yield marker, text[marker.end() : end]


def _first_line(segment: str) -> str:
    return segment.lstrip(" \t\r\n*:$").partition("\n")[0]


def _inside_braces(segment: str) -> str:
    depth = 1
    for brace in re.finditer(r"[{}]", segment):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return segment[: brace.start()]
    return segment.partition("\n")[0]


def _read_statement(segment: str) -> Fraction | NoAnswer:
    decoration = _DECORATION.match(segment)
    number = _NUMBER.match(segment, decoration.end() if decoration else 0)
    if number is None:
        return NoAnswer.MISSING
    tail = segment[number.end() :]
    if _HEADING.match(tail):
        return NoAnswer.MISSING
    value = _to_fraction(number)
    return value if value is not None and _is_unit(tail.strip()) else NoAnswer.UNCLEAR


def _is_unit(tail: str) -> bool:
    """Returns whether what follows a number, behind any space, leaves its value as it is.

    Powers belong to a letter's unit: `4 m²`, but `4²` is another number.
    """
    if len(tail) > _MAX_UNIT_CHARS or _HEDGES.search(tail):
        return False
    return all(
        char in _UNIT_PUNCTUATION
        or _is_word_letter(char)
        or (char in _UNIT_POWERS and _is_word_letter(before))
        for before, char in zip(" " + tail, tail, strict=False)
    )


def _is_word_letter(char: str) -> bool:
    """Returns whether a character is a letter, and neither a numeral, raised, lowered nor pi."""
    is_part_of_number = char.isnumeric() or decomposition(char).startswith("<su") or char in "πΠ"
    return char.isalpha() and not is_part_of_number


def _to_fraction(number: re.Match[str]) -> Fraction | None:
    """Returns the number's value; None where it is too long, or a fraction of zero."""
    if len(number[0]) > _MAX_NUMBER_CHARS:
        return None
    part = {name: (text or "").replace(",", "") for name, text in number.groupdict().items()}
    if part["top"]:
        if int(part["bottom"]) == 0:
            return None
        value = int(part["whole"] or 0) + Fraction(int(part["top"]), int(part["bottom"]))
    else:
        exponent = int(part["exponent"] or part["power"] or 0)
        scale = _SCALES.get(part["scale"].lower())
        if scale is None or abs(exponent + scale) > _MAX_EXPONENT:
            return None
        value = Fraction(part["decimal"]) * Fraction(10) ** (exponent + scale)
    return -value if part["sign"] == "-" or part["sign2"] else value
