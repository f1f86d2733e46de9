r"""Text after a number that does not change its value.

The words for units have no end (`42 cookies`, `42 miles per hour`), so a word is a unit unless it
belongs to one of these: words that count (`thousand`, `halves`, `pairs`) or calculate (`squared`,
`less`, `factorial`), words that take the number back or add a second one (`or`, `not`, `if`), and
what looks like a variable (`5x`, `5 ab`): one or two letters, or letters without a vowel, that are
no known unit. Behind a percentage, a word for a change is one as well: `42 % less` is not 42.

Signs are those of units and punctuation; any digit and any operator is another number. A power
belongs to a unit of measure: `4 m²`, `4 feet squared`, but not `4²` and not `4 squared`.
"""

import re
from unicodedata import combining, decomposition, normalize

_MAX_CHARS = 80

_LETTER = r"[^\W\d_²³º]"
_WORD = re.compile(
    rf"""(?P<word>(?:[a-z]\.){{2,}} | {_LETTER}+(?:['\u2019]{_LETTER}+)*)
    (?P<power>\s?(?:\^-?[1-9](?![0-9]) | [²³]) | \s(?:squared|cubed)\b)?""",
    re.VERBOSE | re.IGNORECASE,
)
_TAIL = re.compile(
    rf"""(?: \s
    | [°º˚]
    | {_WORD.pattern.replace("?P<word>", "?:").replace("?P<power>", "?:")}
    | (?<!\s)[*_`]+(?![^\W_])  # the end of emphasis
    | (?<=\w)-(?={_LETTER})    # a hyphen: 42-year-old
    | /\s?(?={_LETTER})        # per: km/h
    | \.(?!\.)
    | [,;%'"\u2019\u201c\u201d()\[\]$£€¥₹¢]
    )*+""",
    re.VERBOSE | re.IGNORECASE,
)
_SHARE = re.compile(r"%|\b(?:percent|percentage|per\scent|pct)\b", re.IGNORECASE)
_EXPLANATION = re.compile(r"\b(?:since|because)\b", re.IGNORECASE)
_COUNT = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|"
    "(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ie)|"
    "hundred|thousand|lakh|lac|crore|myriad|googol|googolplex|grand|"
    "dozen|score|gross|pair|couple|"
    "half|halve|third|fourth|quarter|fif|eigh|nin|twelf"
)
_COUNTS = re.compile(
    rf"(?:(?:{_COUNT})(?:e?s|ths?)?)+|[a-z]*illi(?:on|ard)(?:s|en|ths?)?|[a-z]*fold"
)
_GRADE = re.compile(r"[\s-]grade(?:rs?)?\b", re.IGNORECASE)
"""Behind an ordinal: `42 third graders`."""
_PAIRS = re.compile(r"pairs?")
_OF = re.compile(r"\sof\b", re.IGNORECASE)
"""A pair of shoes is one thing, a pair alone is two."""
_VOWEL = re.compile("[aeiou]|[b-df-hj-np-tvw]y")
_ACRONYMS = re.compile("[A-Z]{2,}s")
_NEGATION = re.compile(r"n['\u2019]t\Z")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OTHERS = _words(
    "or nor and not no never cannot but else if unless otherwise instead versus between either "
    "neither maybe perhaps possibly probably wrong false incorrect"
)
_CALCULATIONS = _words(
    "plus minus add subtract subtracted multiplied multiply divided divide less squared cubed "
    "factorial factorials power powers exponent exponential root roots log ln exp sin cos tan "
    "mod modulo modulus pi tau double doubled triple tripled quadruple quadrupled quintuple "
    "quintupled cube halved halving twice thrice itself inverse inverted reciprocal negative "
    "negated opposite reversed backward backwards remainder infinity infinite binary octal hex "
    "hexadecimal base below least most minimum maximum upward upwards repeating recurring kilo "
    "mega giga tera peta exa zetta yotta hecto deca deka deci centi milli micro nano pico femto "
    "mil mill mille mila permille promille tausend tausends millones bil mio thou thous doz ish "
    "sine cosine tangent tetrated choose imaginary"
)
_CHANGES = _words(
    "less more fewer off than lower higher greater smaller larger bigger cheaper shorter longer "
    "taller faster slower heavier lighter older younger increase increased decrease decreased "
    "reduction reduced discount discounted markup markdown drop fall rise gain loss growth up down"
)
"""Behind a percentage."""
_QUALIFYING = _words("a square cubic sq cu")
"""These stand before a unit and are none themselves."""
_HYPHENATED = re.compile(rf"-{_LETTER}{{4}}")
"""Behind a single letter: `42 T-shirts`."""

_SYMBOLS = frozenset("mgshlLCFVWNJ")
_MEASURES = _words(
    "m mm cm dm km um nm in inch inches ft foot feet yd yds yard yards mi mile miles unit units "
    "meter meters metre metres millimeter millimeters millimetre millimetres centimeter "
    "centimeters centimetre centimetres decimeter decimeters kilometer kilometers kilometre "
    "kilometres s sec secs second seconds h hr hour hours"
)
_SHORT_WORDS = _MEASURES | _words(
    "kg mg lb lbs oz ml cl dl kb mb gb tb kw kwh kj hz khz mhz ghz pa ha ac st nd rd th hrs mo wk "
    "wks yr yrs qt qts pt pts pc pcs ea hp cc db am pm us usd gbp eur mph kph kmh rpm psi cts ct "
    "gal tsp tbsp kcal bps ppm ppl sqft sqm sq cu min mins day days cal deg rad ton tons bit bits "
    "fl of on at to by is as an it he we my so up tv id do be me go mr mrs dr rmb bpm fps"
)


def is_unit(text: str, start: int) -> bool:
    """Returns whether what follows a number, from `start` to the end of `text`, leaves it as it is.

    >>> is_unit("42 square feet", 2), is_unit("42 squared", 2), is_unit("42 or more", 2)
    (True, False, False)
    """
    if len(text) - start > _MAX_CHARS or not _TAIL.fullmatch(text, start):
        return False
    explanation = _EXPLANATION.search(text, start)
    end = explanation.start() if explanation else len(text)
    is_share = _SHARE.search(text, start, end) is not None
    for match in _WORD.finditer(text, start):
        word, folded = match["word"], _fold(match["word"])
        if folded is None or not _is_harmless(folded, text[match.end() :]):
            return False
        if match.start() >= end:
            continue
        if not _is_unit_word(word, folded, match.start() == start, text[match.end() :]):
            return False
        if (match["power"] and folded not in _MEASURES) or (is_share and folded in _CHANGES):
            return False
    return True


def _fold(word: str) -> str | None:
    """Returns a word in small letters without accents; None if its letters are not all of a kind.

    Letters of other alphabets stay, but none that are numerals, raised, lowered or mathematical,
    and none beside Latin ones, which they may look like.
    """
    word = word.replace("\u00b5", "u").replace("\u03bc", "u").replace(".", "")  # micro
    if any(char.isnumeric() or decomposition(char).startswith(("<su", "<font")) for char in word):
        return None
    plain = "".join(char for char in normalize("NFKD", word) if not combining(char))
    folded = plain.upper().casefold()  # the Turkish dotless i is an i in capitals
    is_latin = [char.isascii() for char in folded if char.isalpha()]
    return folded if all(is_latin) or not any(is_latin) else None


_COUNTS_OF_OTHERS = tuple(
    str(_fold(word)) for word in _words("тысяч миллион миллиард 십 백 천 만 억")
)
"""How words for numbers begin in other alphabets."""


def _is_harmless(folded: str, rest: str) -> bool:
    """Returns whether a word names no second number and does not take the first one back."""
    if _COUNTS.fullmatch(folded):
        return bool((_OF if _PAIRS.fullmatch(folded) else _GRADE).match(rest))
    return folded not in _OTHERS and not folded.startswith(_COUNTS_OF_OTHERS)


def _is_unit_word(word: str, folded: str, is_attached: bool, rest: str) -> bool:
    if folded in _CALCULATIONS or _NEGATION.search(folded):
        return False
    if len(folded) == 1 and _HYPHENATED.match(rest):
        return not is_attached
    if folded in _QUALIFYING:
        return not is_attached and bool(re.match(rf"\.?\s?{_LETTER}", rest))
    if not folded.isascii():
        has_case = folded.upper() != folded
        return len(folded) > 2 or not has_case
    if word in _SYMBOLS or (folded in _SHORT_WORDS - _SYMBOLS and word != "MM"):
        return True
    is_long = len(folded) > (3 if is_attached else 2)
    return is_long and bool(_VOWEL.search(folded) or _ACRONYMS.fullmatch(word))
