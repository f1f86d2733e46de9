"""Blocks of code as Markdown fences them, in actions."""

import re

MAX_FENCE = 16
_RUN = re.compile(r"`{3,}")


def write_block(language: str, code: str) -> str:
    r"""Returns code in a fence that is longer than any in it, up to `MAX_FENCE` backticks.

    >>> write_block("sql", "SELECT 1")
    '```sql\nSELECT 1\n```'
    """
    longest = max(map(len, _RUN.findall(code)), default=2)
    fence = "`" * min(longest + 1, MAX_FENCE)
    return f"{fence}{language}\n{code}\n{fence}"
