r"""Regular expressions in linear time, for patterns that a task or an agent brings.

They run on RE2, whose time is that of the text times the size of the pattern's program; both are
limited. Python's own `re` backtracks: `^(\w+\s?)+$` may take years for a line of text.
"""

import re
from functools import lru_cache
from importlib import import_module
from typing import Any

from agentpeft.envs.core.errors import DataError, shown

_MAX_PATTERN_CHARS = 1000
_MAX_PROGRAM_SIZE = 2000
"""Some tenths of a second for the longest text that an agent can send."""
_MAX_PATTERN_BYTES = 512 * 1024
_UNKNOWN_TO_RE2 = ("invalid perl", "invalid escape", "bad repetition", "invalid repetition")
_LACKS = (
    "; patterns run in linear time, on RE2, which has no lookaround (?= ?! ?<= ?<!), no "
    r"back-references \1, no possessive or atomic groups, no (?x) or (?#, and no more than "
    "1,000 repeats: write it without these, or as a check script"
)
_PYTHONIC = re.compile(r"\\(.)|\[\^?\]?(?:\\.|[^\]\\])*\]|\{,(\d+)\}", re.DOTALL)


@lru_cache(maxsize=256)
def compile_linear(pattern: str) -> Any:
    r"""Returns RE2's compiled pattern for one that is written for Python's `re`.

    `\Z` and `{,3}` are written as RE2 reads them; `\w`, `\d`, `\s` and `\b` know ASCII alone.
    Raises: DataError, which names what RE2 lacks where Python would read the pattern.
    """
    if len(pattern) > _MAX_PATTERN_CHARS:
        problem = f"of {len(pattern)} characters, {_MAX_PATTERN_CHARS} at most"
        raise DataError(f"a pattern {problem}: {shown(pattern)}")
    try:
        re2 = import_module("re2")  # here, since not every platform has it
    except ImportError as error:
        raise DataError(f"patterns need RE2: pip install google-re2 ({error})") from None
    options = re2.Options()
    options.max_mem, options.log_errors = _MAX_PATTERN_BYTES, False
    try:
        compiled = re2.compile(_PYTHONIC.sub(_rewrite, pattern), options)
    except UnicodeEncodeError:
        raise DataError(f"not a pattern, since no UTF-8: {shown(pattern)}") from None
    except re2.error as error:
        reason = bytes(error.args[0]).decode("utf-8", "replace")
        lacks = _LACKS if reason.startswith(_UNKNOWN_TO_RE2) else ""
        raise DataError(f"not a pattern ({reason:.60}): {shown(pattern)}{lacks}") from None
    if compiled.programsize > _MAX_PROGRAM_SIZE:
        raise DataError(
            f"a pattern that repeats too much (x+ is less than x{{500}}): {shown(pattern)}"
        )
    return compiled


def _rewrite(token: re.Match[str]) -> str:
    if token[1] == "Z":
        return r"\z"
    return f"{{0,{token[2]}}}" if token[2] else token[0]
