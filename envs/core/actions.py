"""Actions in text: code in blocks as Markdown fences them, and what is no action."""

import re
from dataclasses import dataclass

MAX_FENCE = 16
_RUN = re.compile(r"`{3,}")
_LINE_END = r"\r\n|\n|\r"


@dataclass(frozen=True)
class InvalidAction:
    """Text that is not a valid action; `problem` tells the agent what is missing."""

    problem: str


def find_block(language: str, text: str, *, may_be_inline: bool = False) -> str | None:
    r"""Returns the code of the first block in a language; None without one.

    Where the opening line or the last one ends with `\r\n` or `\r`, so do all, and the code gets
    `\n`. Any other `\r` is the code's. `may_be_inline`: code may begin in the opening line.

    >>> find_block("sh", "```sh \r\nls\r\npwd\r\n```")
    'ls\npwd'
    """
    opening = rf"{language}(?:[ \t]*({_LINE_END})" + (r"|\s)" if may_be_inline else ")")
    closing = rf"(?:({_LINE_END})[ \t]*)?\1"
    block = re.search(rf"(`{{3,{MAX_FENCE}}}){opening}(.*?){closing}", text, re.DOTALL)
    if block is None:
        return None
    code = block[3]
    for end in ("\r\n", "\r"):
        if end in (block[2], block[4]):
            code = code.replace(end, "\n")
    return code


def write_block(language: str, code: str) -> str:
    r"""Returns code in a fence that is longer than any in it, up to `MAX_FENCE` backticks.

    >>> write_block("sql", "SELECT 1")
    '```sql\nSELECT 1\n```'
    """
    longest = max(map(len, _RUN.findall(code)), default=2)
    fence = "`" * min(longest + 1, MAX_FENCE)
    return f"{fence}{language}\n{code}\n{fence}"
