"""When an OS-interaction answer is right."""

import pytest

from agentpeft.envs import DataError
from agentpeft.envs.os_interaction.grading.answers import ExpectedAnswer


@pytest.mark.parametrize(
    ("value", "kind", "answer"),
    [
        ("log", "text", " log\n"),
        ("log", "text", "'log'"),
        ("3", "text", "3.0"),
        ("7", "number", "`7`"),
        ("1234", "number", "1,234"),
        ("0.3333333", "number", "0.33333333"),
        ("/srv/a\n/srv/b", "names", "/srv/b, /srv/a"),
        ("a b", "names", "b\na"),
        ("4.0K", "size", "4096"),
        ("4.0K", "size", "4 KB"),
        ("4.0K", "size", "4.1 kB"),
        ("1.5M", "size", "1.5MiB"),
        ("512", "size", "512 bytes"),
        ("4100", "size", "4.0K"),
        ("100K", "size", "101900"),
        ("4.0K", "size", "4K"),
        ("^[Yy]es", "regex", "yes, it is"),
    ],
)
def test_right_answers(value, kind, answer):
    assert ExpectedAnswer(value, kind).allows(answer)


@pytest.mark.parametrize(
    ("value", "kind", "answer"),
    [
        ("log", "text", "Log"),
        ("log", "text", "log file"),
        ("3", "text", "4"),
        ("10000000", "number", "10000001"),
        ("3", "number", "3 files"),
        ("3", "number", "."),
        ("1234", "number", "12,34"),
        ("a b", "names", "a"),
        ("a b", "names", "a a b"),
        ("4.0K", "size", "4"),
        ("4.0K", "size", "4.3K"),
        ("4.0K", "size", "4.1K"),
        ("100", "size", "102"),
        ("100K", "size", "101K"),
        ("1.5M", "size", "2M"),
        ("4.0K", "size", "4\u212a"),
        ("4", "size", "\u0664"),
        ("3", "number", "e5"),
        ("3", "number", "\u0663"),
        ("3", "number", "3²"),
        ("9" * 300 + "e99", "number", "8" * 300 + "e99"),
        ("4.0K", "size", "many"),
        ("yes", "regex", "no"),
        ("3", "text", ""),
        ("", "text", ""),
        ("", "size", "4K"),
    ],
)
def test_wrong_answers(value, kind, answer):
    assert not ExpectedAnswer(value, kind).allows(answer)


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(DataError, match="not a pattern"):
        ExpectedAnswer("(", "regex")
