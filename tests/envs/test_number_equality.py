"""Near misses around a gold number, alike for every grader that compares numbers."""

from collections.abc import Callable
from decimal import Context, Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpeft.envs.db_bench.grading.answers import parse_answer
from agentpeft.envs.db_bench.grading.matching import is_same_stored_row, is_same_value
from agentpeft.envs.gsm8k.answers import is_correct
from agentpeft.envs.os_interaction.grading.answers import ExpectedAnswer

EXACT = Context(prec=200)

Grader = Callable[[str, Decimal], bool]


def grade_db_bench(answer: str, gold: Decimal) -> bool:
    is_integer = gold.as_tuple().exponent == 0
    return is_same_value(parse_answer(answer, 1)[0][0], int(gold) if is_integer else gold)


def grade_db_bench_text(answer: str, gold: Decimal) -> bool:
    return is_same_value(parse_answer(f"[('{answer}',)]", 1)[0][0], f"{gold:f}")


def grade_gsm8k(answer: str, gold: Decimal) -> bool:
    return is_correct(f"So it is this.\n#### {answer}", f"{gold:f}")


def grade_os_interaction(answer: str, gold: Decimal) -> bool:
    return ExpectedAnswer(f"{gold:f}", "number").allows(answer)


GRADERS = [grade_db_bench, grade_db_bench_text, grade_gsm8k, grade_os_interaction]

integers = st.one_of(
    st.integers(-(10**7), 10**7),
    st.integers(2**53 - 5, 2**53 + 5),
    st.integers(10**20, 10**20 + 9),
).map(Decimal)
# one or two decimals are too few for a number that was rounded
decimals = st.builds(lambda m, e: Decimal(m).scaleb(-e), st.integers(12, 10**6), st.integers(1, 2))
decimals = decimals.filter(lambda number: number % 1)  # GSM8K's 29.0 is an integer
rounded = st.builds(
    lambda m, e: Decimal(m).scaleb(-e), st.integers(100, 99_999), st.integers(5, 12)
)
tiny = st.builds(lambda m, e: Decimal(m).scaleb(-e), st.integers(1, 99), st.integers(6, 20))
signs = st.sampled_from([1, -1])


def write(number: Decimal) -> str:
    return f"{number:f}"


@pytest.mark.parametrize("grade", GRADERS)
@given(gold=integers, decimals=st.integers(0, 4))
def test_an_integer_may_be_written_with_zeros(grade: Grader, gold: Decimal, decimals: int):
    assert grade(write(gold) + "." * (decimals > 0) + "0" * decimals, gold)


@pytest.mark.parametrize("grade", GRADERS)
@example(gold=Decimal(1234567), miss=Decimal("0.9"), sign=1)
@example(gold=Decimal(1234567), miss=Decimal("1.0"), sign=1)
@example(gold=Decimal(2**53 + 1), miss=Decimal(1), sign=-1)
@given(
    gold=integers,
    miss=st.sampled_from([Decimal(text) for text in ("1", "1.0", "0.9", "0.5", "0.1", "1e-7")]),
    sign=signs,
)
def test_what_is_beside_an_integer_is_wrong(grade: Grader, gold: Decimal, miss: Decimal, sign: int):
    assert not grade(write(EXACT.add(gold, miss * sign)), gold)


@pytest.mark.parametrize("grade", GRADERS)
@given(gold=st.one_of(decimals, tiny), sign=signs)
def test_a_decimal_is_right_within_a_millionth_of_its_size(grade: Grader, gold: Decimal, sign: int):
    for share, is_right in (("0", True), ("5e-7", True), ("2e-6", False), ("1e-3", False)):
        answer = EXACT.multiply(gold, 1 + sign * Decimal(share))
        assert grade(write(answer), gold) is is_right


@pytest.mark.parametrize("grade", GRADERS)
@example(gold=Decimal("2.5e-7"))
@given(gold=st.one_of(decimals, rounded, tiny))
def test_another_number_than_a_decimal_is_wrong(grade: Grader, gold: Decimal):
    for answer in (Decimal(0), -gold, gold * 2, gold * 10, gold / 10, gold * Decimal("3.6")):
        assert not grade(write(answer), gold)


@pytest.mark.parametrize("grade", [grade_db_bench, grade_db_bench_text, grade_os_interaction])
@given(gold=rounded, sign=signs)
def test_what_rounds_to_a_decimal_is_right(grade: Grader, gold: Decimal, sign: int):
    step = Decimal(1).scaleb(int(gold.as_tuple().exponent))
    assert grade(write(gold + sign * step * Decimal("0.4")), gold)
    assert not grade(write(gold + sign * step * Decimal("0.6")), gold) or gold > step * 600_000


@given(st.floats(1e-300, 1e300), signs)
def test_a_stored_float_is_right_but_for_its_last_bits(gold: float, sign: int):
    assert is_same_stored_row((gold * (1 + sign * 1e-12),), (gold,))
    assert not is_same_stored_row((gold * (1 + sign * 1e-8),), (gold,))
    assert not is_same_stored_row((0.0,), (gold,))


def test_an_average_of_whole_numbers_is_a_decimal():
    assert is_same_value(4.999999999999999, Decimal("5.0000"))
    assert is_same_value(4.999999999999999, 5.0)
    assert not is_same_value(4.999999999999999, 5)


def test_a_decimal_zero_is_what_sums_of_doubles_leave():
    assert is_same_value(0.1 + 0.2 - 0.3, 0.0) and is_same_stored_row((5e-17,), (0.0,))
    assert not is_same_value(1e-9, 0.0) and not is_same_value(1e-17, 0)


@given(st.integers(0, 10**12), st.integers(1, 10**10))
def test_a_size_in_bytes_is_exact(gold: int, miss: int):
    assert ExpectedAnswer(str(gold), "size").allows(f"{gold} bytes")
    assert not ExpectedAnswer(str(gold), "size").allows(str(gold + miss))


@given(st.integers(40, 99), st.sampled_from("KMGT"), st.data())
def test_a_size_as_du_rounds_it_is_not_its_neighbour(tenths: int, unit: str, data: st.DataObject):
    """du prints 4.0K for what is above 3.9K and at most 4.0K."""
    expected = ExpectedAnswer(f"{tenths / 10}{unit}", "size")
    factor = 1024 ** ("KMGT".index(unit) + 1)
    above, most = (tenths - 1) * factor // 10 + 1, tenths * factor // 10
    assert expected.allows(str(data.draw(st.integers(above, most))))
    assert expected.allows(f"{tenths / 10} {unit}iB")
    for neighbour in (tenths - 1, tenths + 1):
        assert not expected.allows(f"{neighbour / 10}{unit}")
        assert not expected.allows(str(neighbour * factor // 10 + (neighbour > tenths)))
