"""Text that can be encoded: Python's strings may hold half surrogate pairs, which UTF-8 has not."""


def to_utf8(text: str) -> str:
    r"""Returns a text with `?` for each half surrogate pair, as of a file's name that is no UTF-8.

    >>> to_utf8("a\ud83d")
    'a?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
