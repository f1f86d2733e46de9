import time
from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpeft.envs.db_bench.grading.answers import parse_answer


@pytest.mark.parametrize(
    ("text", "num_columns", "rows"),
    [
        ("[('a', 1), ('b', 2)]", 2, (("a", 1), ("b", 2))),
        ('[["a", 1], ["b", null]]', 2, (("a", 1), ("b", None))),
        ("('a', 1), ('b', 2)", 2, (("a", 1), ("b", 2))),
        ("[(a, 1)]", 2, (("a", 1),)),
        ("a, 1", 2, (("a", 1),)),
        ("['x', 'y']", 1, (("x",), ("y",))),
        ("['x', 'y']", 2, (("x", "y"),)),
        ("42", 1, ((42,),)),
        ("-1.5", 1, ((-1.5,),)),
        ("(42,)", 1, ((42,),)),
        ("March 19, 1998", 1, (("March 19, 1998",),)),
        ("O'Brien", 1, (("O'Brien",),)),
        ("'it's'", 1, (("it's",),)),
        ("'it''s'", 1, (("it's",),)),
        (r"['it\'s']", 1, (("it's",),)),
        ("[(Decimal('3.50'), datetime.date(2020, 1, 2))]", 2, (("3.50", date(2020, 1, 2)),)),
        ("[(datetime.datetime(2020, 1, 2, 3, 4),)]", 1, ((datetime(2020, 1, 2, 3, 4),),)),
        ("[(datetime.timedelta(seconds=5),)]", 1, ((timedelta(seconds=5),),)),
        ("[\n  ('a', 1),\n  ('b', 2)\n]", 2, (("a", 1), ("b", 2))),
        ("[('a', 1)]\nI hope this helps.", 2, (("a", 1),)),
        ("('a', 1)\n('b', 2)\nI hope this helps.", 2, (("a", 1), ("b", 2))),
        (r'["\ud83d\ude00 \u00e9\b"]', 1, (("😀 é\b",),)),
        ("[]", 1, ()),
        ("[('a', 1)] or [('b', 2)]", 2, (("[('a', 1)] or [('b', 2)]",),)),
        ("{'a': 1}", 1, (("{'a': 1}",),)),
        ("[__import__('os').system('true')]", 1, (("[__import__('os').system('true')]",),)),
        ("[" * 100 + "1" + "]" * 100, 1, (("[" * 100 + "1" + "]" * 100,),)),
    ],
)
def test_answers_are_read_as_rows(text, num_columns, rows):
    assert parse_answer(text, num_columns) == rows


values = st.one_of(
    st.none(),
    st.integers(-(10**12), 10**12),
    st.text(max_size=12),
    st.dates(),
    st.decimals(-1000, 1000, places=2),
)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=5))
def test_printed_rows_are_read_back(rows):
    expected = tuple(
        tuple(str(value) if isinstance(value, Decimal) else value for value in row) for row in rows
    )
    assert parse_answer(str(rows), 2) == expected


@given(st.text(max_size=200), st.integers(1, 3))
def test_any_text_gives_rows(text, num_columns):
    for row in parse_answer(text, num_columns):
        assert isinstance(row, tuple)


@pytest.mark.parametrize("text", ["[" * 60_000, "'a'," * 16_000, "'" + "\\a" * 30_000, "1,\n" * 9])
def test_hostile_text_is_read(text):
    parse_answer(text, 1)


@pytest.mark.parametrize("text", ["1" * 60_000 + "x", "[" + "1" * 60_000 + "x]", "1." * 30_000])
def test_long_digits_take_no_time(text):
    start_s = time.process_time()
    parse_answer(text, 1)
    assert time.process_time() - start_s < 1


@pytest.mark.parametrize("item", ["1,", "(),", "(1)\n", "('')\r\n", "1 ,\t"])
def test_thousands_of_values_take_linear_time(item):
    start_s = time.process_time()
    parse_answer(item * (64_000 // len(item)), 1)
    assert time.process_time() - start_s < 2


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("text", "num_columns", "rows"),
    [
        ("('a', 1)\n('b', 2)\nThese.", 2, (("a", 1), ("b", 2))),
        ("[('a', 1)]\nThat is it.", 2, (("a", 1),)),
        ("42 \nThat is it.", 1, ((42,),)),
        ("forty-two\nThat is it.", 1, (("forty-two",),)),
    ],
)
def test_an_answer_ends_where_its_line_does(end, text, num_columns, rows):
    assert parse_answer(text.replace("\n", end), num_columns) == rows
