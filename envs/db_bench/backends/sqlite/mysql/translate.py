"""`translate`: one MySQL statement as SQLite statements, with the types of its result."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from sys import getsizeof

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile import changes, tables
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import compile_query, find_table
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Query, Scope, name_of
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import STRICT
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.statements import (
    Statement,
    locate,
    parse,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Schema, SqlType


class StatementKind(StrEnum):
    """What a statement does. `NOTHING`: it changes nothing (USE of the only database)."""

    READ = "read"
    WRITE = "write"
    DEFINITION = "definition"
    BEGIN = "begin"
    COMMIT = "commit"
    AUTOCOMMIT_ON = "autocommit on"
    AUTOCOMMIT_OFF = "autocommit off"
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


_KEPT: ByteCache[tuple[Statement, Schema], Translation | MySQLError] = ByteCache(32 * 1024**2)
_TRANSLATION_BYTES = 1000
_TYPE_BYTES = 100


def translate(statement: Statement, schema: Schema) -> Translation:
    """Returns the statement for SQLite. Raises: MySQLError for what MySQL would refuse."""
    result = _KEPT.find((statement, schema))
    if result is None:
        result = _translate(statement, schema)
        _KEPT.keep((statement, schema), result, _count_bytes(statement, schema, result))
    if isinstance(result, MySQLError):
        raise result.copy()
    return result


def _count_bytes(statement: Statement, schema: Schema, result: Translation | MySQLError) -> int:
    num_bytes = _TRANSLATION_BYTES + getsizeof(statement.text) + schema.num_bytes
    if isinstance(result, MySQLError):
        return num_bytes + getsizeof(result.message)
    num_bytes += sum(map(getsizeof, result.sql)) + _TYPE_BYTES * len(result.types)
    return num_bytes + (result.schema.num_bytes if result.schema else 0)


def _translate(statement: Statement, schema: Schema) -> Translation | MySQLError:
    strict = STRICT.set(statement.words[0] in ("INSERT", "UPDATE", "DELETE"))
    try:
        tree = parse(statement)
        if type(tree) not in _COMPILERS:
            return Mistake.NOT_SUPPORTED(type(tree).__name__.upper())
        return _COMPILERS[type(tree)](tree, schema)
    except MySQLError as error:
        return error.copy()  # its traceback holds the syntax tree
    except Misplaced as error:
        return locate(statement, error)
    except RecursionError:
        return Mistake.STACK()
    finally:
        STRICT.reset(strict)
        statement.forget_tokens()


def _read(query: Query) -> Translation:
    types = tuple(column.type for column in query.columns)
    return Translation(StatementKind.READ, (query.sql,), types)


def _write(compile_change: Callable[[exp.Expr, Schema], str]) -> "_Compiler":
    return lambda node, schema: Translation(StatementKind.WRITE, (compile_change(node, schema),))


def _define(compile_definition: Callable[[exp.Expr, Schema], tables.Definition]) -> "_Compiler":
    def compile_it(node: exp.Expr, schema: Schema) -> Translation:
        made = compile_definition(node, schema)
        return Translation(StatementKind.DEFINITION, made.sql, schema=made.schema)

    return compile_it


def _set(node: exp.Expr, schema: Schema) -> Translation:
    """`SET autocommit`; other settings and variables are refused."""
    item = node.expressions[0]
    target = item.this.this if isinstance(item.this, exp.EQ) else item.this
    if (
        len(node.expressions) > 1
        or not isinstance(target, exp.Column)
        or target.name.lower() != "autocommit"
        or (item.text("kind") or "SESSION").upper() != "SESSION"
    ):
        raise Mistake.NOT_SUPPORTED(f"SET {item.text('kind') or target.name}")
    value = item.this.expression.sql().upper()
    if value not in ("0", "1", "ON", "OFF", "TRUE", "FALSE"):
        raise Mistake.WRONG_VALUE("autocommit", value)
    is_on = value in ("1", "ON", "TRUE")
    return Translation(StatementKind.AUTOCOMMIT_ON if is_on else StatementKind.AUTOCOMMIT_OFF)


def _describe(node: exp.Expr, schema: Schema) -> Translation:
    if not isinstance(node.this, exp.Table):
        raise Mistake.NOT_SUPPORTED("EXPLAIN")
    return _read(tables.describe(find_table(node.this, Scope(schema))))


def _use(node: exp.Expr, schema: Schema) -> Translation:
    if name_of(node.this.this) != schema.name:
        raise Mistake.DATABASE_DENIED(name_of(node.this.this))
    return Translation(StatementKind.NOTHING)


_Compiler = Callable[[exp.Expr, Schema], Translation]
_QUERIES = (exp.Select, exp.Union, exp.Intersect, exp.Except, exp.Subquery)
_COMPILERS: dict[type[exp.Expr], _Compiler] = {
    **dict.fromkeys(_QUERIES, lambda node, schema: _read(compile_query(node, Scope(schema)))),
    exp.Insert: _write(changes.compile_insert),
    exp.Update: _write(changes.compile_update),
    exp.Delete: _write(changes.compile_delete),
    exp.TruncateTable: _define(tables.compile_truncate),
    exp.Create: _define(tables.compile_create),
    exp.Drop: _define(tables.compile_drop),
    exp.Show: lambda node, schema: _read(tables.show(node, schema)),
    exp.Describe: _describe,
    exp.Transaction: lambda *_: Translation(StatementKind.BEGIN),
    exp.Commit: lambda *_: Translation(StatementKind.COMMIT),
    exp.Rollback: lambda *_: Translation(StatementKind.ROLLBACK),
    exp.Use: _use,
    exp.Set: _set,
}
