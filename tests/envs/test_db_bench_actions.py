import pytest

from agentpeft.envs.core.actions import InvalidAction
from agentpeft.envs.db_bench.actions import (
    Answer,
    RunSQL,
    answer_action,
    operation_action,
    parse_action,
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Action: Operation\n```sql\nSELECT 1\n```", RunSQL("SELECT 1")),
        ("I think so.\nAction: Operation\n```sql\nSELECT 1;\n\n```\nDone", RunSQL("SELECT 1;")),
        ("Action: Answer\nFinal Answer: [(1,)]", Answer("[(1,)]")),
        ("Action: Answer\nFinal Answer:", Answer("")),
        ("Action: Operation\n```sql\nSELECT `a` FROM `b`\n```", RunSQL("SELECT `a` FROM `b`")),
        # The first marker counts, as in LifelongAgentBench.
        ("Action: Answer\nFinal Answer: 1\nAction: Operation\n```sql\nX\n```", None),
    ],
)
def test_messages_are_read(text, parsed):
    expected = parsed or Answer("1\nAction: Operation\n```sql\nX\n```")
    assert parse_action(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1",
        "Action: Operations\n```sql\nSELECT 1\n```",
        "Action: Operation\nSELECT 1",
        "Action: Operation\n```sql\nSELECT 1",
        "```sql\nSELECT 1\n```\nAction: Operation",
        "Action: Answer\n42",
        "Final Answer: 42",
    ],
)
def test_other_messages_are_invalid(text):
    assert isinstance(parse_action(text), InvalidAction)


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT 'a;b' -- c\nFROM t", "[('a', 1)]"])
def test_rendered_actions_are_read_back(text):
    assert parse_action(operation_action(text)) == RunSQL(text)
    assert parse_action(answer_action(text)) == Answer(text)


def test_hostile_messages_are_read_in_linear_time():
    assert isinstance(parse_action("Action: Operation" + "```sql " * 9000), RunSQL)
    assert isinstance(parse_action("Action: Operation " * 3500), InvalidAction)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Action: Operation \n```sql \nSELECT 1 -- one\n, 2\n``` ", RunSQL("SELECT 1 -- one\n, 2")),
        ("Action: Operation\n```sql SELECT 1\n```", RunSQL("SELECT 1")),
        ("Action: Operation\n```sql\tSELECT 'a\nb'```", RunSQL("SELECT 'a\nb'")),
        ("Action: Operation\n```sql\n```\n", RunSQL("")),
        ("Action: Answer \nFinal Answer: 42 \n", Answer("42")),
    ],
)
def test_lines_may_end_in_any_way(end, text, parsed):
    is_inline = "sql\t" in text
    assert parse_action(text.replace("\n", "\n" if is_inline else end)) == parsed


def test_a_carriage_return_in_a_literal_is_the_statements():
    sql = "SELECT 'a\r\nb'"
    assert parse_action(operation_action(sql)) == RunSQL(sql)
