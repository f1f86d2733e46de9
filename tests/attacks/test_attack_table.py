"""The page about the attacks says what the entries are."""

from table import PAGE, render_page


def test_the_page_is_what_the_entries_make() -> None:
    """If not: python tests/attacks/table.py"""
    assert PAGE.read_text(encoding="utf-8") == render_page()
