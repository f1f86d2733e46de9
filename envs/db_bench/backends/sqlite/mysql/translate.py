"""`translate`: one MySQL statement as SQLite statements, with the types of its result."""

from dataclasses import dataclass
from enum import StrEnum
from sys import getsizeof

from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile import changes
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import (
    compile_query,
    find_table,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import CompiledQuery, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import STRICT
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.parser import parse
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.statements import Statement
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Schema, SqlType, quote_name


class StatementKind(StrEnum):
    """What a statement does."""

    READ = "read"
    WRITE = "write"
    DEFINITION = "definition"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    AUTOCOMMIT_ON = "autocommit on"
    AUTOCOMMIT_OFF = "autocommit off"


@dataclass(frozen=True)
class Translation:
    """A translated statement.

    `sql`: SQLite statements to run in order, all or none; a READ has one. `types`: of a READ's
    columns. `schema`: the schema after a DEFINITION.
    """

    kind: StatementKind
    sql: tuple[str, ...] = ()
    types: tuple[SqlType, ...] = ()
    schema: Schema | None = None


_KEPT: ByteCache[tuple[str, Schema], Translation] = ByteCache(16 * 1024**2)
_COLUMN_BYTES = 500


def translate(statement: Statement, schema: Schema) -> Translation:
    """Returns the statement for SQLite. Raises: MySQLError for what MySQL would refuse."""
    key = (statement.text, schema)
    kept = _KEPT.find(key)
    if kept is not None:
        return kept
    try:
        translation = _translate(statement, schema)
    except RecursionError:
        raise Mistake.STACK() from None
    num_columns = sum(len(table.columns) for table in (translation.schema or schema).tables)
    num_bytes = getsizeof(statement.text) + sum(map(getsizeof, translation.sql))
    _KEPT.keep(key, translation, num_bytes + _COLUMN_BYTES * (2 + num_columns))
    return translation


def _translate(statement: Statement, schema: Schema) -> Translation:
    node = parse(statement)
    if isinstance(node, nodes.Query):
        return _read(compile_query(node, Scope(schema)))
    if isinstance(node, nodes.Create):
        return _define(changes.compile_create(node, schema))
    if isinstance(node, nodes.PlainStatement):
        return _command(node, schema)
    strict = STRICT.set(True)
    try:
        if isinstance(node, nodes.Insert):
            return Translation(StatementKind.WRITE, (changes.compile_insert(node, schema),))
        return Translation(StatementKind.WRITE, (changes.compile_change(node, schema),))
    finally:
        STRICT.reset(strict)


def _command(node: nodes.PlainStatement, schema: Schema) -> Translation:
    if node.words in ("BEGIN", "COMMIT", "ROLLBACK", "AUTOCOMMIT ON", "AUTOCOMMIT OFF"):
        return Translation(StatementKind(node.words.lower()))
    if node.words == "SHOW TABLES":
        return _read(changes.show_tables(schema))
    if node.words == "DESCRIBE":
        return _read(changes.describe(node.tables[0], schema))
    if node.words == "TRUNCATE":
        table = find_table(node.tables[0], schema)
        return _define(((f"DELETE FROM {quote_name(table.name)}",), schema))
    return _define(changes.compile_drop(node, schema))


def _read(query: CompiledQuery) -> Translation:
    types = tuple(column.type for column in query.columns)
    return Translation(StatementKind.READ, (query.sql,), types)


def _define(definition: changes.Definition) -> Translation:
    sql, schema = definition
    return Translation(StatementKind.DEFINITION, sql, schema=schema)
