"""`translate`: one MySQL statement as SQLite statements, with the types of its result."""

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
    state = StatementState(schema, compile_query, has_quotes=has_quotes)
    words = statement.words
    strict = STRICT.set(words[0] in ("INSERT", "UPDATE", "DELETE") and words[1:2] != ["IGNORE"])
    try:
        return _dispatch(parse(statement), statement, state)
    except MySQLError as error:
        return error.copy()  # its traceback holds the syntax tree
    except Misplaced as error:
        return locate(statement, error)
    except RecursionError:
        return Mistake.STACK()
    finally:
        STRICT.reset(strict)
        statement.forget_tokens()


_QUERIES = (exp.Select, exp.Union, exp.Intersect, exp.Except, exp.Subquery, exp.Values)
_TRANSACTIONS: dict[type[exp.Expr], StatementKind] = {
    exp.Transaction: StatementKind.BEGIN,
    exp.Commit: StatementKind.COMMIT,
    exp.Rollback: StatementKind.ROLLBACK,
}


def _dispatch(node: exp.Expr, statement: Statement, state: StatementState) -> Translation:
    if isinstance(node, _QUERIES):
        return _read(compile_query(node, Scope(state), False))
    if isinstance(node, exp.Insert):
        return _write(compile_insert(node, state, statement.is_replace))
    if isinstance(node, exp.Update):
        return _write(compile_update(node, state))
    if isinstance(node, exp.Delete):
        return _write(compile_delete(node, state))
    if type(node) in _TRANSACTIONS:
        return Translation(_TRANSACTIONS[type(node)])
    return _dispatch_other(node, state)


def _dispatch_other(node: exp.Expr, state: StatementState) -> Translation:
    if isinstance(node, exp.Create):
        return _definition(compile_create(node, state))
    if isinstance(node, exp.Drop):
        return _definition(compile_drop(node, state.schema))
    if isinstance(node, exp.Alter):
        return _definition(compile_alter(node, state))
    if isinstance(node, exp.TruncateTable):
        table = find_table(node.expressions[0], Scope(state))
        return _write([f"DELETE FROM {quote_name(table.name)}"])
    if isinstance(node, exp.Show):
        return _read(show(node, state.schema))
    if isinstance(node, exp.Describe) and isinstance(node.this, exp.Table):
        return _read(describe(find_table(node.this, Scope(state))))
    if isinstance(node, exp.Use):
        if name_of(node.this.this) != state.schema.name:
            raise Mistake.DATABASE_DENIED(name_of(node.this.this))
        return Translation(StatementKind.NOTHING)
    if isinstance(node, exp.Set):
        return _set(node, state)
    raise Mistake.NOT_SUPPORTED(type(node).__name__.upper())


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
        if isinstance(target, exp.Column | exp.SessionParameter) and _is_autocommit(target):
            is_on = item.this.expression.sql().upper() in ("1", "TRUE", "ON")
            on, off = StatementKind.AUTOCOMMIT_ON, StatementKind.AUTOCOMMIT_OFF
            return Translation(on if is_on else off)
        if isinstance(target, exp.Parameter):
            value = compile_expression(item.this.expression, Scope(state))
            terms.append(f"my_set({quote_text(target.name.lower())}, {value.sql})")
    if not terms:
        return Translation(StatementKind.NOTHING)
    return _write([f"SELECT {', '.join(terms)}"])


def _is_autocommit(target: exp.Expr) -> bool:
    """Returns whether SET means the switch of transactions, however it is written."""
    return target.name.lower() == "autocommit"
