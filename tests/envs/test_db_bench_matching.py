import time
from datetime import date, timedelta
from decimal import Decimal
from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpeft.envs.db_bench.grading.answers import parse_answer
from agentpeft.envs.db_bench.grading.matching import (
    count_pairs,
    is_same_row,
    is_same_stored_row,
    is_same_value,
    is_sub_bag,
)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (5, 5),
        ("5", 5),
        (5, "5"),
        (5.0, 5),
        ("3.5", Decimal("3.5000")),
        (0.1 + 0.2, 0.3),
        (1000000.5, 1000000.6),
        ("3.14159", Decimal("3.142")),
        (0.3333333, "0.333"),
        ("2020-01-02", date(2020, 1, 2)),
        ("26:00:05", timedelta(days=1, hours=2, seconds=5)),
        ("-00:00:01.500000", timedelta(seconds=-1.5)),
        (None, None),
        ("Ann", "Ann"),
        ("5.0", "5"),
    ],
)
def test_values_that_agree(answer, gold):
    assert is_same_value(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("ann", "Ann"),
        ("five", 5),
        ("", 5),
        (None, "None"),
        ("None", None),
        (None, 0),
        ("", None),
        ("007", "7"),
        (1234567, 1234568),
        (0.33, "0.333"),
        (3.6, Decimal("3.5")),
        ("3.1", Decimal("3.14")),
        ("nan", 5),
        (True, "True"),
        ("2020-01-03", date(2020, 1, 2)),
        ("00:00:01", timedelta(seconds=1.5)),
        ("1e999", 5),
    ],
)
def test_values_that_differ(answer, gold):
    assert not is_same_value(answer, gold)


rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"])), max_size=6)


@given(rows, st.randoms())
def test_a_shuffled_bag_is_the_same_bag(bag, random):
    shuffled = list(bag)
    random.shuffle(shuffled)
    assert is_sub_bag(shuffled, bag)


@given(rows, rows)
def test_sub_bag_agrees_with_counting(answer, gold):
    expected = all(answer.count(row) <= gold.count(row) for row in answer)
    assert is_sub_bag(answer, gold) == expected


def test_pairing_moves_partners_where_tolerance_overlaps():
    # 1.0 fits both gold values, 1.0000018 only the second: the first must give way.
    assert is_sub_bag([(1.0000009,), (1.0000018,)], [(1.000001,), (1.0,)])
    assert not is_sub_bag([(1.0000018,), (1.0000018,)], [(1.000001,), (1.0,)])


near_values = st.sampled_from(
    [None, "a", 1, "1.0000009", 1.000001, Decimal("1.0000018"), "0.9995", Decimal("1.000")]
)
near_rows = st.lists(st.tuples(near_values, near_values), max_size=4)


@example([(1, Decimal("1.0000018"))], [(1, 1), (1, Decimal("1.000"))])
@example([(1, "1.0000009"), (1, 1.0000018)], [(1, "1.0000009"), (1, 1)])
@given(near_rows, near_rows)
def test_pairing_agrees_with_trying_every_order(answer, gold):
    expected = any(
        all(map(is_same_row, answer, order)) for order in permutations(gold, len(answer))
    )
    assert is_sub_bag(answer, gold) == expected


def test_stored_text_is_compared_exactly():
    assert is_same_stored_row((1, "a", 0.1), (1, "a", 0.1 + 1e-11))
    assert not is_same_stored_row(("5.0",), ("5",))
    assert not is_same_stored_row((None,), ("",))


def test_twenty_thousand_quoted_numbers_are_paired_at_once():
    gold = [(f"n{number}", number / 7) for number in range(20_000)]
    assert is_sub_bag([(name, str(number)) for name, number in reversed(gold)], gold)
    assert not is_sub_bag([(name, str(number + 1)) for name, number in gold], gold)


def test_thousands_of_alike_rows_are_one_row():
    start_s = time.process_time()
    gold = [(0, 0.5)] * 5_000
    near = [(0, 0.5000001)] * 4_999
    assert is_sub_bag([*near, (0, 0.5)], gold)
    assert not is_sub_bag([*near, (0, 0.6)], gold)
    assert count_pairs([*near, (0, 0.6)], gold, is_same_row) == 4_999
    assert time.process_time() - start_s < 1


def test_rows_are_found_by_the_column_that_tells_them_apart():
    start_s = time.process_time()
    gold = [(0, number) for number in range(5_000)]
    assert not is_sub_bag([(0, number + 0.3) for number in range(5_000)], gold)
    assert is_sub_bag([(0, f"{number}.0") for number in range(5_000)], gold)
    assert time.process_time() - start_s < 2


NAMES = ["1e2", "1E2", "007", "+7", "1e0", "00", "-07", "1.", ".5", "12e3", "0e0"]


@pytest.mark.parametrize("gold", NAMES)
def test_a_text_that_only_may_be_a_number_is_compared_as_text(gold):
    number = Decimal(gold)
    for answer in (number, float(number), f"{number:f}", f"{number + 0:f}".lstrip("+")):
        assert answer == gold or not is_same_value(answer, gold), answer
    assert is_same_value(gold, gold) and is_same_value(gold, number)


@pytest.mark.parametrize("gold", NAMES)
def test_such_a_text_may_be_answered_without_quotes(gold):
    for text in (f"[('a', {gold})]", f"[('a', '{gold}')]"):
        assert is_sub_bag(parse_answer(text, 2), [("a", gold)])
        assert is_sub_bag(parse_answer(text, 2), [("a", Decimal(gold))])
    assert not is_sub_bag(parse_answer(f"[('a', {Decimal(gold):f})]", 2), [("a", gold)])
