"""What an OS-interaction message asks for."""

import pytest

from agentpeft.envs.core.actions import InvalidAction
from agentpeft.envs.os_interaction.actions import (
    Command,
    Finish,
    command_action,
    finish_action,
    parse_action,
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Act: bash\n```bash\nls /tmp\n```", Command("ls /tmp")),
        ("I look first.\nAct:bash\n\n```bash\ncd /srv\nls\n``` done", Command("cd /srv\nls")),
        ("Act: bash\n```bash\n```", Command("")),
        ("Act: bash\n```bash\necho ')'\n```\nAct: finish", Command("echo ')'")),
        ("Act: finish", Finish()),
        ("All is done. Act: finish.", Finish()),
        ("Act: answer(42)", Finish("42")),
        ("Act: answer( a (b) c ) and more", Finish("a (b) c")),
        ("Act: answer()", Finish("")),
        ("Act: answer(one\ntwo)", Finish("one\ntwo")),
        ("Act: finish\nAct: answer(3)", Finish()),
    ],
)
def test_the_first_marker_decides(text, parsed):
    assert parse_action(text) == parsed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", 'no "Act: bash"'),
        ("act: finish", 'no "Act: bash"'),
        ("Act: finished", 'no "Act: bash"'),
        ("Act: answer 42", 'no "Act: bash"'),
        ("Act: bash ls", "needs a ```bash block"),
        ("Act: bash\n```\nls\n```", "needs a ```bash block"),
        ("Act: bash\n```bash\nls", "needs a ```bash block"),
        ("Act: answer(42", 'has no ")"'),
    ],
)
def test_what_is_missing_is_said(text, problem):
    parsed = parse_action(text)
    assert isinstance(parsed, InvalidAction)
    assert problem in parsed.problem


def test_actions_are_read_as_they_are_written():
    assert parse_action(command_action("ls\npwd")) == Command("ls\npwd")
    assert parse_action(finish_action(None)) == Finish()
    assert parse_action(finish_action("(a b)")) == Finish("(a b)")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Act: bash\n```bash\nls /tmp\n```", Command("ls /tmp")),
        ("Act: bash \n\n```bash \t\ncd /srv\n\n\tls \n``` \n", Command("cd /srv\n\n\tls ")),
        ("Act: bash\n````bash\necho '```'\n  ````", Command("echo '```'")),
        ("Act: bash\n```bash\n```\n", Command("")),
        ("I am done.\nAct: finish \n", Finish()),
        ("Act: answer(one\n two \n)\n", Finish("one\n two")),
    ],
)
def test_lines_may_end_in_any_way(end, text, parsed):
    assert parse_action(text.replace("\n", end)) == parsed


@pytest.mark.parametrize(
    ("opening", "closing", "script"),
    [
        ("\n", "\n", "cat > dos <<E\na\r\nE"),
        ("\n", "\n", "printf 'a\rb'"),
        ("\r\n", "\r\n", "printf 'a\rb'"),
    ],
)
def test_other_carriage_returns_are_the_scripts(opening, closing, script):
    assert parse_action(f"Act: bash\n```bash{opening}{script}{closing}```") == Command(script)


@pytest.mark.parametrize(
    ("opening", "between", "closing"),
    [("\r\n", "\r\n", "\n"), ("\n", "\r\n", "\r\n"), ("\r\n", "\n", "\r\n"), ("\n", "\n", "\r\n")],
)
def test_a_block_is_read_by_its_first_or_last_line_end(opening, between, closing):
    text = f"Act: bash\n```bash{opening}ls{between}pwd{closing}```"
    assert parse_action(text) == Command("ls\npwd")
