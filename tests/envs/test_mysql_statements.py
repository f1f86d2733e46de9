"""Statements as agents and benchmarks write them: the embedded MySQL against a server."""

import re
from contextlib import closing
from pathlib import Path

from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import DatabaseLimits, DatabaseSession

_TEXT = Path(__file__).with_name("mysql_statements.sql").read_text(encoding="utf-8")
_SETUP, _, _STATEMENTS = _TEXT.partition("\n\n")
TABLES = ("emp", "dept", "sales", "tags")
READS = re.compile(r"SELECT|WITH|SHOW|DESC|EXPLAIN|\(")


def run(session: DatabaseSession, sql: str) -> object:
    """Returns what came out: rows in any order, an error's number or the changed tables."""
    result = session.execute(sql)
    if result.error is not None:
        return result.error.split()[0]
    if READS.match(sql) or ";" in sql.rstrip(";"):
        return sorted(map(printed, result.rows))
    tables = [session.read_table(name) for name in TABLES]
    return [sorted(map(printed, table.rows)) if table else None for table in tables]


def printed(row: tuple[object, ...]) -> str:
    """Returns a row with its doubles to 12 digits."""
    return str([float(f"{v:.12g}") if isinstance(v, float) else v for v in row])


def answers(database: str) -> list[object]:
    """Returns what each statement gives; each change begins with fresh tables."""
    found: list[object] = []
    session: DatabaseSession | None = None
    with closing(open_database(database, DatabaseLimits())) as backend:
        for sql in _STATEMENTS.splitlines():
            if session is None:
                session = backend.open(())
                assert session.execute(_SETUP).error is None
            found.append(run(session, sql))
            if not READS.match(sql):
                session.close()
                session = None
    return found


def test_statements_give_what_a_server_gives_or_are_refused(mysql_url: str) -> None:
    pairs = zip(answers("sqlite"), answers(mysql_url), _STATEMENTS.splitlines(), strict=True)
    differing = [(sql, embedded) for embedded, served, sql in pairs if embedded != served]
    assert [sql for sql, embedded in differing if embedded not in {"1235", "1064"}] == []
    assert len(differing) <= 240


def test_refused_statements_say_what_is_not_supported() -> None:
    results = answers("sqlite")
    assert "1105" not in results
    assert results.count("1235") <= 240
