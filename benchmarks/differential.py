"""Does the embedded MySQL give what a MySQL-protocol server gives?

    python benchmarks/differential.py --database mysql://root@127.0.0.1:3306 --show differing.txt

Plays random statements on both and prints one JSON line with the share of equal results. Rows are
compared as they print (floats to 12 digits, and whether they have more), in order where the
statement orders them; after a change all tables' contents; errors by their number. With `--mutated`
each statement is changed at random. Counted are: equal results (of these, the rows), statements
that SQLite alone refuses as not supported or as no MySQL, other errors against rows or other
errors, and different rows.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from differential_expressions import make_tables
from differential_mutations import mutate
from differential_statements import Statement, make_statement

from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import (
    Database,
    DatabaseLimits,
    DatabaseSession,
    Row,
    StatementResult,
    Table,
)

STATEMENTS_PER_TABLES = 20


@dataclass(frozen=True)
class Difference:
    """A statement whose results are not equal."""

    sql: str
    tables: tuple[Table, ...]
    sqlite: str
    server: str

    @property
    def kind(self) -> str:
        """What differs: "refused" by SQLite alone, "error" or "rows"."""
        if self.sqlite in ("error 1235", "error 1064"):
            return "refused"
        return "error" if "error" in (self.sqlite[:5], self.server[:5]) else "rows"

    def to_text(self) -> str:
        """Returns it as lines to read."""
        tables = "\n".join(f"{table.name}: {table.rows}" for table in self.tables)
        return f"{self.sql}\n  sqlite: {self.sqlite}\n  server: {self.server}\n{tables}\n"


def play(
    seed: int,
    num_statements: int,
    databases: tuple[Database, Database],
    is_mutated: bool = False,
) -> Iterator[Difference]:
    """Yields the statements whose results differ between two databases."""
    for start in range(0, num_statements, STATEMENTS_PER_TABLES):
        num_left = min(STATEMENTS_PER_TABLES, num_statements - start)
        yield from _play_tables(Random(f"{seed}/{start}"), num_left, databases, is_mutated)


def _play_tables(
    rng: Random, num_statements: int, databases: tuple[Database, Database], is_mutated: bool
) -> Iterator[Difference]:
    tables = make_tables(rng)
    with ExitStack() as stack:
        sessions: list[DatabaseSession] = []
        for _ in range(num_statements):
            statement = make_statement(rng)
            if is_mutated:
                statement = mutate(statement, rng)
            if not sessions or statement.is_write:  # a change begins with fresh tables
                sessions = [
                    stack.enter_context(closing(database.open(tables))) for database in databases
                ]
            sqlite, server = (describe(statement, tables, session) for session in sessions)
            if sqlite != server:
                yield Difference(statement.sql, tables, sqlite, server)
            if statement.is_write:
                sessions = []


def describe(statement: Statement, tables: tuple[Table, ...], session: DatabaseSession) -> str:
    """Runs a statement and returns what came out, so that equal texts are equal results."""
    result: StatementResult = session.execute(statement.sql)
    if result.error is not None:
        return f"error {result.error.split()[0]}"
    rows = _print_rows(result.rows, statement.is_ordered)
    if not statement.is_write:
        return rows
    contents = [session.read_table(table.name) for table in tables]
    printed = (
        "gone" if table is None else _print_rows(table.rows, is_ordered=False) for table in contents
    )
    return "\n".join((rows, *printed))


def _print_rows(rows: tuple[Row, ...], is_ordered: bool) -> str:
    printed = [
        str(tuple(_print_double(v) if isinstance(v, float) else v for v in row)) for row in rows
    ]
    return "\n".join(printed if is_ordered else sorted(printed))


def _print_double(value: float) -> str:
    """Returns a float to 12 digits, and whether it has more: 3.3000000000000003 is not 3.3."""
    return f"{value:.12g}{'…' if len(repr(value)) > len('-0.0123456789012') else ''}"


def main() -> None:
    """Plays the statements and prints the share of equal results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--database", required=True, help="mysql://user:password@host:port")
    parser.add_argument("--num-statements", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutated", action="store_true", help="change each statement at random")
    parser.add_argument("--show", type=Path, help="file for the statements that differ")
    args = parser.parse_args()
    limits = DatabaseLimits()
    with ExitStack() as stack:
        sqlite, server = (
            stack.enter_context(closing(open_database(name, limits)))
            for name in ("sqlite", args.database)
        )
        differences = list(play(args.seed, args.num_statements, (sqlite, server), args.mutated))
    kinds = Counter(difference.kind for difference in differences)
    if args.show:
        unequal = [difference for difference in differences if difference.kind != "refused"]
        text = "\n".join(difference.to_text() for difference in unequal)
        args.show.write_text(text, encoding="utf-8")
    share = 1 - len(differences) / args.num_statements
    line = {
        "benchmark": "differential",
        "seed": args.seed,
        "statements": args.num_statements,
        "mutated": args.mutated,
        "refused": kinds["refused"],
        "differing_errors": kinds["error"],
        "differing_rows": kinds["rows"],
        "share_equal": round(share, 5),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
