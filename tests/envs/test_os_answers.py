"""When an OS-interaction answer is right."""

import time

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


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("1e2", "100"),
        ("1E2", "100.0"),
        ("007", "7"),
        ("00", "0"),
        ("12e3", "12,000"),
        ("1.10", "1.1"),
        ("2.0", "2"),
        ("1e-1", ".1"),
    ],
)
def test_a_text_that_only_may_be_a_number_is_compared_as_text(value, answer):
    assert not ExpectedAnswer(value).allows(answer)
    assert ExpectedAnswer(value).allows(value) and ExpectedAnswer(value, "number").allows(answer)


SLOW_TO_BACKTRACK = [
    r"^(\w+\s?)+$",
    r"(a+)+b",
    r"(a|aa)+$",
    r"(a|a?)+b",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
]


@pytest.mark.parametrize("pattern", SLOW_TO_BACKTRACK)
def test_patterns_are_searched_in_linear_time(pattern):
    expected = ExpectedAnswer(pattern, "regex")
    start_s = time.thread_time()
    for answer in ("a" * 60 + "!", "a" * 65_000 + "!", "ab " * 20_000 + "!", "\ud800a!"):
        expected.allows(answer)
    assert time.thread_time() - start_s < 5


@pytest.mark.parametrize(
    "pattern", [r"(?=a)b", r"a(?!b)", r"(?<=a)b", r"(a)\1", r"a++", r"(?>a)", "(?x) a", "a{2000}"]
)
def test_what_the_patterns_engine_lacks_is_said_when_a_task_is_loaded(pattern):
    with pytest.raises(DataError, match="RE2, which has no lookaround") as caught:
        ExpectedAnswer(pattern, "regex")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "a{2,1}", "(a{1,100}){1,10}c", "a" * 2000, "\ud800"]
)
def test_patterns_that_cannot_be_run_are_refused(pattern):
    with pytest.raises(DataError, match="a pattern") as caught:
        ExpectedAnswer(pattern, "regex")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"\A\d{,3}\Z", "123", "1234"),
        (r"^[{,3}]+$", "{3}", "0"),
        (r"(?i)^(?P<word>yes)$", "YES", "yesterday"),
        (r"\\Z", r"a\Z", "Z"),
        ("é+", "été", "ete"),
    ],
)
def test_patterns_mean_what_they_mean_in_python(pattern, right, wrong):
    assert ExpectedAnswer(pattern, "regex").allows(right)
    assert not ExpectedAnswer(pattern, "regex").allows(wrong)
