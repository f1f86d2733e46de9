"""`translate`: one MySQL statement as SQLite statements, with the types of its result."""

from dataclasses import dataclass
from enum import StrEnum
from sys import getsizeof

from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile import changes, tables
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import compile_query
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import CompiledQuery, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import STRICT
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.parser import parse
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.statements import Statement
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Schema, SqlType


class StatementKind(StrEnum):
    """What a statement does. `NOTHING`: it changes nothing (USE of the only database)."""

    READ = "read"
    WRITE = "write"
    DEFINITION = "definition"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    NOTHING = "nothing"


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


_KEPT: ByteCache[tuple[str, Schema], Translation | MySQLError] = ByteCache(32 * 1024**2)
_TRANSLATION_BYTES = 1000
_TYPE_BYTES = 100


def translate(statement: Statement, schema: Schema) -> Translation:
    """Returns the statement for SQLite. Raises: MySQLError for what MySQL would refuse."""
    key = (statement.text, schema)
    result = _KEPT.find(key)
    if result is None:
        try:
            result = _translate(statement, schema)
        except MySQLError as error:
            result = error.copy()  # its traceback holds the syntax tree
        except RecursionError:
            result = Mistake.STACK()
        _KEPT.keep(key, result, _count_bytes(statement, schema, result))
    if isinstance(result, MySQLError):
        raise result.copy()
    return result


def _count_bytes(statement: Statement, schema: Schema, result: Translation | MySQLError) -> int:
    num_bytes = _TRANSLATION_BYTES + getsizeof(statement.text) + schema.num_bytes
    if isinstance(result, MySQLError):
        return num_bytes + getsizeof(result.message)
    num_bytes += sum(map(getsizeof, result.sql)) + _TYPE_BYTES * len(result.types)
    return num_bytes + (result.schema.num_bytes if result.schema else 0)


def _translate(statement: Statement, schema: Schema) -> Translation:
    node = parse(statement)
    if isinstance(node, nodes.Query):
        return _read(compile_query(node, Scope(schema)))
    if isinstance(node, nodes.Insert | nodes.Change):
        strict = STRICT.set(True)
        try:
            if isinstance(node, nodes.Insert):
                return Translation(StatementKind.WRITE, (changes.compile_insert(node, schema),))
            return Translation(StatementKind.WRITE, (changes.compile_change(node, schema),))
        finally:
            STRICT.reset(strict)
    if isinstance(node, nodes.Create):
        return _define(*tables.compile_create(node, schema))
    return _command(node, schema)


def _command(node: nodes.Command, schema: Schema) -> Translation:
    if node.words in ("BEGIN", "COMMIT", "ROLLBACK"):
        return Translation(StatementKind(node.words.lower()))
    if node.words == "TRUNCATE":
        return _define(*tables.compile_truncate(node, schema))
    if node.words.startswith("DROP"):
        return _define(*tables.compile_drop(node, schema))
    if node.words == "USE":
        if node.tables[0].name != schema.name:
            raise Mistake.DATABASE_DENIED(node.tables[0].name)
        return Translation(StatementKind.NOTHING)
    if node.words == "DESCRIBE":
        return _read(tables.describe(node, schema))
    is_tables = node.words == "SHOW TABLES"
    return _read((tables.show_tables if is_tables else tables.show_databases)(node, schema))


def _read(query: CompiledQuery) -> Translation:
    types = tuple(column.type for column in query.columns)
    return Translation(StatementKind.READ, (query.sql,), types)


def _define(sql: tuple[str, ...], schema: Schema) -> Translation:
    return Translation(StatementKind.DEFINITION, sql, schema=schema)
