"""A hook of mkdocs: the tags of code blocks (`sh needs:gpu`) are for the tests, not for readers."""

import re


def on_page_markdown(markdown: str, **_: object) -> str:
    """Returns a page's text without the tags, which Markdown would take for no block at all."""
    return re.sub(r"^(`{3,}\w+) needs:\w+$", r"\1", markdown, flags=re.M)
