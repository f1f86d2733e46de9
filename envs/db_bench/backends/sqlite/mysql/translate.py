"""`translate`: one MySQL statement as SQLite statements, with the types of its result."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from sys import getsizeof

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile import (  # noqa: F401 (they register their handlers)
    aggregates,
    calls,
    operators,
    values,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.catalog import describe, show
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.changes import (
    compile_delete,
    compile_insert,
    compile_update,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import STRICT
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.definitions import (
    Definition,
    compile_alter,
    compile_create,
    compile_drop,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import compile_expression
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.from_clause import find_table
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import compile_query
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    Query,
    Scope,
    StatementState,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.statements import (
    Statement,
    locate,
    parse,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    Schema,
    SqlType,
    quote_name,
    quote_text,
)


class StatementKind(StrEnum):
    """What a statement does. `NOTHING`: accepted, without effect here (SET NAMES, USE)."""

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
    has_quotes = any(map(statement.text.__contains__, "`'\""))
    state = StatementState(schema, compile_query, statement.is_replace, has_quotes=has_quotes)
    words = statement.words
    strict = STRICT.set(words[0] in ("INSERT", "UPDATE", "DELETE") and words[1:2] != ["IGNORE"])
    try:
        tree = parse(statement)
        if type(tree) not in _COMPILERS:
            return Mistake.NOT_SUPPORTED(type(tree).__name__.upper())
        return _COMPILERS[type(tree)](tree, state)
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
    return Translation(StatementKind.READ, (query.sql,), query.types)


def _write(sql: list[str]) -> Translation:
    return Translation(StatementKind.WRITE, tuple(sql))


def _definition(definition: Definition) -> Translation:
    return Translation(StatementKind.DEFINITION, definition.sql, schema=definition.schema)


def _set(node: exp.Expr, state: StatementState) -> Translation:
    """`SET @x = …` keeps the value; other settings than autocommit are accepted and ignored."""
    terms = []
    for item in node.expressions:
        target = item.this.this if isinstance(item.this, exp.EQ) else None
        if isinstance(target, exp.SessionParameter) and target.text("kind").upper() == "GLOBAL":
            raise Mistake.PRIVILEGE("SUPER or SYSTEM_VARIABLES_ADMIN")
        if (
            isinstance(target, exp.Column | exp.SessionParameter)
            and target.name.lower() == "autocommit"
        ):
            is_on = item.this.expression.sql().upper() in ("1", "TRUE", "ON")
            on, off = StatementKind.AUTOCOMMIT_ON, StatementKind.AUTOCOMMIT_OFF
            return Translation(on if is_on else off)
        if isinstance(target, exp.Parameter):
            value = compile_expression(item.this.expression, Scope(state))
            terms.append(f"my_set({quote_text(target.name.lower())}, {value.sql})")
    if not terms:
        return Translation(StatementKind.NOTHING)
    return _write([f"SELECT {', '.join(terms)}"])


def _truncate(node: exp.Expr, state: StatementState) -> Translation:
    table = find_table(node.expressions[0], Scope(state))
    return _write([f"DELETE FROM {quote_name(table.name)}"])


def _describe(node: exp.Expr, state: StatementState) -> Translation:
    if not isinstance(node.this, exp.Table):
        raise Mistake.NOT_SUPPORTED("DESCRIBE")
    return _read(describe(find_table(node.this, Scope(state))))


def _use(node: exp.Expr, state: StatementState) -> Translation:
    if name_of(node.this.this) != state.schema.name:
        raise Mistake.DATABASE_DENIED(name_of(node.this.this))
    return Translation(StatementKind.NOTHING)


_COMPILERS: dict[type[exp.Expr], Callable[[exp.Expr, StatementState], Translation]] = {
    **dict.fromkeys(
        (exp.Select, exp.Union, exp.Intersect, exp.Except, exp.Subquery, exp.Values),
        lambda node, state: _read(compile_query(node, Scope(state), False)),
    ),
    exp.Insert: lambda node, state: _write(compile_insert(node, state)),
    exp.Update: lambda node, state: _write(compile_update(node, state)),
    exp.Delete: lambda node, state: _write(compile_delete(node, state)),
    exp.TruncateTable: _truncate,
    exp.Create: lambda node, state: _definition(compile_create(node, state)),
    exp.Alter: lambda node, state: _definition(compile_alter(node, state)),
    exp.Drop: lambda node, state: _definition(compile_drop(node, state.schema)),
    exp.Show: lambda node, state: _read(show(node, state.schema)),
    exp.Describe: _describe,
    exp.Transaction: lambda *_: Translation(StatementKind.BEGIN),
    exp.Commit: lambda *_: Translation(StatementKind.COMMIT),
    exp.Rollback: lambda *_: Translation(StatementKind.ROLLBACK),
    exp.Use: _use,
    exp.Set: _set,
}
