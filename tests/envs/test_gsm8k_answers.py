"""Final answers: what is found, what is compared, what is refused."""

import time
from fractions import Fraction

import pytest

from agentpeft.envs.gsm8k.answers import NoAnswer, find_final_answer, is_correct, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6 * 7 = 42\n#### 42", 42),
        ("####42.", 42),
        ("#### 42\n\n", 42),
        (r"so \boxed{42}", 42),
        (r"$$\boxed{x = 42}$$", 42),
        (r"\boxed{\boxed{42}}", 42),
        ("The answer is 42.", 42),
        ("the final answer is: **42** apples.", 42),
        ("**Answer:** $42", 42),
        ("Answer:\n42", 42),
        (r"The answer is \(42\)", 42),
        ("ANSWER = 42", 42),
        ("#### 1,234,567", 1_234_567),
        (r"\boxed{1{,}234}", 1234),
        (r"\boxed{1\,234}", 1234),
        ("#### $42", 42),
        ("#### \\$42", 42),
        ("#### 42%", 42),
        ("#### €42.50", Fraction(85, 2)),
        ("#### 42 km/h", 42),
        ("#### 42 ºC", 42),
        ("#### 42 m³/s", 42),
        ("#### 42メートル", 42),
        ("#### 42 square feet (m²)", 42),
        (r"\boxed{42\text{ apples}}", 42),
        ("#### 42-year-old", 42),
        ("The answer is 42, since nobody paid twice.", 42),
        ("#### 42,", 42),
        ("#### 42 times", 42),
        ("#### 3/4", Fraction(3, 4)),
        (r"\boxed{\frac{3}{4}}", Fraction(3, 4)),
        (r"\boxed{-\dfrac{3}{4}}", Fraction(-3, 4)),
        ("#### 1 1/2", Fraction(3, 2)),
        (r"\boxed{1\frac{1}{2}}", Fraction(3, 2)),
        ("#### 0.25", Fraction(1, 4)),
        ("#### .5", Fraction(1, 2)),
        ("#### -3", -3),
        ("#### \u22123", -3),
        ("#### -$3", -3),
        ("#### $-3", -3),
        ("#### 1.5e3", 1500),
        ("#### 2E-2", Fraction(1, 50)),
        (r"#### 1.5 \times 10^{3}", 1500),
        ("#### 1.5 million dollars", 1_500_000),
        ("#### " + "9" * 3000, 10**3000 - 1),
        ("#### Step 1: add\n#### 42", 42),
        ("#### 1. Add\n#### 42", 42),
        ("the answer is found by adding\n#### 42", 42),
        ("the answer is 41? No.\n#### 42", 42),
        (r"#### 42 = \boxed{42}".replace("= ", ""), 42),
        ("the answer is 42. So the answer is 42.0", 42),
    ],
)
def test_final_answers_are_read_by_value(text, value):
    assert find_final_answer(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "#### 41 or 42",
        "#### 42 or 41",
        "#### 41 #### 42",
        "#### 42\n#### 41",
        "#### 41, 42",
        "#### 41-42",
        "#### 41 42",
        "#### 42/41/40",
        "#### 42, maybe forty-one",
        "#### 42, or more",
        "#### 42 not forty",
        "#### 42?",
        "#### 12:30",
        "#### 1,23",
        "#### 2^3",
        "#### 4²",
        "#### 4 ³",
        "#### 4ⁿ",
        "#### 4π",
        "#### 4万",
        "#### 4 五",
        "#### 4₂",
        "#### 4Ⅷ",
        "#### 4 m²²",
        "#### 4 m\u0131ll\u0131on",
        r"\boxed{4²}",
        "the answer is 4²",
        "#### 42 \u0664\u0661",
        "#### 3\u00bd",
        "#### 42 and a half",
        "#### 6*7=42",
        "#### 1/0",
        "#### 1e999999999",
        "#### " + "9" * 5000,
        r"\boxed{41, 42}",
        r"\boxed{41} \boxed{42}",
        r"#### 41 \boxed{42}",
        "the answer is 41 or 42",
        "the answer is 42, not 41",
        "the answer is 41. The answer is 42.",
        "The answer is 42 if it rains, else forty",
        "#### 42\n" * 600,
    ],
)
def test_guesses_are_unclear(text):
    assert find_final_answer(text) is NoAnswer.UNCLEAR
    assert not is_correct(text, "42") and not is_correct(text, "41")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "I think 42",
        "####",
        "#### x",
        "#### forty-two",
        "answer 42",
        "the answer is not 42",
        r"\boxed{}",
        r"\boxed",
        "#### 1. Add",
        "#### \u0664\u0662",
        "# 42",
        "### 42",
    ],
)
def test_texts_without_a_final_answer(text):
    assert find_final_answer(text) is NoAnswer.MISSING


@pytest.mark.parametrize(
    ("text", "gold", "correct"),
    [
        ("#### 42", "42", True),
        ("#### 42.0", "42", True),
        ("#### 41.9999999", "42", False),
        ("#### 41.999", "42", False),
        ("#### 1000000000001", "1000000000000", False),
        ("#### 0.333333333", "1/3", True),
        ("#### 0.3333", "1/3", False),
        ("#### 1200", "1,200", True),
        ("#### -42", "42", False),
        ("#### 43", "42", False),
        ("#### 0.42", "42%", False),
        ("", "42", False),
    ],
)
def test_integers_are_compared_exactly_and_others_within_a_millionth(text, gold, correct):
    assert is_correct(text, gold) is correct


def test_a_gold_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="gold must be a number, got 'x'"):
        is_correct("#### 42", "x")
    assert parse_number("") is None and parse_number("1 2") is None


PIECES = [
    "####",
    "#### 1\n",
    "#### 1e308\n",
    r"\boxed{",
    "{",
    "}",
    "answer is 1 or ",
    "answer ",
    " ",
]
PIECES += ["9", "1,", "1,111", "9 ", "9/", "$", "*", r"\frac{1}{", r"\text{a", "1e9", "\\", "six "]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("start", ["", "#### ", r"\boxed{", "answer is ", r"\frac{", r"\text{"])
def test_hostile_texts_take_linear_time(start, piece):
    """Usually 15 ms; the bound leaves room for a busy machine, and none for quadratic work."""
    text = (start + piece * 65_536)[:65_536]
    begin_s = time.thread_time()
    find_final_answer(text)
    assert time.thread_time() - begin_s < 3


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "text",
    [
        "6 * 7 = 42\n#### 42 \n",
        "#### 42\nEvery word of what follows is about how I have got there, and not a unit at all.",
        "The answer is 42\nEvery word of what follows is about how I have got there, 6 times 7.",
        "Answer: \n\n42 \n",
        "\\boxed{42\n}",
    ],
)
def test_an_answer_ends_where_its_line_does(end, text):
    assert find_final_answer(text.replace("\n", end)) == 42
