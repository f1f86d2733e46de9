"""Equality of an agent's number and the gold one: one rule for every grader.

* Against an *integer* (written without a point or an exponent, or of a type without decimals) an
  answer is equal or wrong: 3.0 is 3, and 2.9999999 is not.
* Against any other number, a *decimal*, an answer is right within a millionth of the gold's own
  size: computing in floating point in another order, or stating six digits, makes no difference.
* Where the gold shows three decimals or more, and three significant digits or more, an answer that
  rounds to it is right too, since the gold may be rounded itself.
* A decimal zero has no size; against it, what is within 1e-12 is right.

Values are decimals and fractions, never floats, so that no digit of a long number is lost.
"""

import re
from decimal import Decimal
from fractions import Fraction

TOLERANCE = Fraction(1, 10**6)
_ZERO_TOLERANCE = Fraction(1, 10**12)
_MIN_DIGITS_OF_ROUNDED = 3
_INTEGER = re.compile(r"[-+]?[0-9]+")


def is_same_number(answer: Fraction, gold: Fraction, num_decimals: int | None) -> bool:
    """Returns whether `answer` is the number `gold`.

    `num_decimals` is how many decimals the gold shows: 0 makes it an integer, None a decimal that
    is not rounded.
    """
    difference = abs(answer - gold)
    if difference == 0 or num_decimals == 0:
        return difference == 0
    if difference <= (TOLERANCE * abs(gold) or _ZERO_TOLERANCE):
        return True
    if num_decimals is None or num_decimals < _MIN_DIGITS_OF_ROUNDED:
        return False
    unit = Fraction(1, 10**num_decimals)
    has_digits = abs(gold) >= unit * 10 ** (_MIN_DIGITS_OF_ROUNDED - 1)
    return has_digits and difference <= unit / 2


def is_same_written_number(answer: str, gold: str) -> bool:
    """Returns whether two numbers are the same, written as `Decimal` reads them.

    Exponents must be within a few hundred, since the numbers are written out.

    >>> is_same_written_number("3.14159", "3.142"), is_same_written_number("3.00001", "3")
    (True, False)
    """
    answer_number, gold_number = Decimal(answer), Decimal(gold)
    if answer_number == gold_number:
        return True
    if _INTEGER.fullmatch(gold):
        return False
    num_decimals = -int(gold_number.as_tuple().exponent)
    return is_same_number(
        Fraction(answer_number),
        Fraction(gold_number),
        num_decimals if num_decimals > 0 else None,
    )
