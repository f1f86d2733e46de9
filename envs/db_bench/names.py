"""Names of tables and columns in SQL."""

from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.words import RESERVED


def is_plain(name: str) -> bool:
    """Returns whether a name needs no backticks: no space, symbol, nor reserved word."""
    return name.isidentifier() and name.isascii() and name.upper() not in RESERVED


def quote(name: str) -> str:
    """Returns a name in backticks."""
    return f"`{name.replace('`', '``')}`"


def quote_if_needed(name: str) -> str:
    """Returns a name as SQL, in backticks only where it needs them."""
    return name if is_plain(name) else quote(name)
