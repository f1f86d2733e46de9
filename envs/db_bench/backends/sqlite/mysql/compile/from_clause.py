"""FROM clauses: tables, joins, derived tables and information_schema."""

from sys import getsizeof

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.catalog import information_schema
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import align
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import compile_condition
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    Fragment,
    OutputColumn,
    Scope,
    Source,
    name_of,
    with_names,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    Kind,
    Schema,
    TableSchema,
    quote_name,
)


def compile_from(node: exp.Expr, scope: Scope) -> str:
    """Returns the FROM clause's SQL and adds its sources to the scope. Raises: MySQLError."""
    first = node.args["from_"].this
    if isinstance(first, exp.Table) and first.name.upper() == "DUAL" and not node.args.get("joins"):
        return ""
    return compile_joins(first, node.args.get("joins") or [], scope)


def compile_joins(first: exp.Expr, joins: list[exp.Expr], scope: Scope) -> str:
    """Returns a table and the joins after it."""
    start = len(scope.sources)
    sql = _compile_source(first, scope)
    for join in joins:
        side, kind = join.text("side").upper(), join.text("kind").upper()
        if not (
            side or kind or join.text("method") or join.args.get("on") or join.args.get("using")
        ):
            scope.visible_from = len(scope.sources)  # a comma: ON sees only what follows it
        left = list(scope.sources[start:])
        table = _compile_source(join.this, scope)
        right = scope.sources[start + len(left) :]
        condition = _condition(join, left, right, scope)
        if side == "RIGHT":
            sql = f"{table} LEFT JOIN {sql if len(left) == 1 else f'({sql})'}{condition or ' ON 1'}"
        elif side == "LEFT":
            sql = f"{sql} LEFT JOIN {table}{condition}"
        elif side == "FULL":
            raise Misplaced("FULL JOIN")
        else:
            sql = f"{sql} JOIN {table}{condition}"
    scope.visible_from = 0
    return sql


def _condition(join: exp.Expr, left: list[Source], right: list[Source], scope: Scope) -> str:
    if join.args.get("on"):
        scope.clause = "on clause"
        condition = compile_condition(join.args["on"], scope)
        scope.bare.clear()
        return f" ON {condition}"
    names = [name.name.lower() for name in join.args.get("using") or []]
    if join.text("method").upper() == "NATURAL":
        right_names = {name for source in right for name in source.fragments}
        names = [name for source in left for name in source.fragments if name in right_names]
    tests = []
    for name in dict.fromkeys(names):
        sides = [_find(name, sources) for sources in (left, right)]
        tests.append(" = ".join(align(sides)))
        scope.using[name] = sides[1 if join.text("side").upper() == "RIGHT" else 0]
    return f" ON {' AND '.join(tests)}" if tests else ""


def _find(name: str, sources: list[Source]) -> Fragment:
    for source in sources:
        if name in source.fragments:
            return source.fragments[name]
    raise Mistake.UNKNOWN_COLUMN(name, "from clause")


def _compile_source(node: exp.Expr, scope: Scope) -> str:
    if isinstance(node, exp.Lateral):
        raise Mistake.NOT_SUPPORTED("LATERAL")
    if isinstance(node, exp.Table):
        joins = node.args.pop("joins", None)
        return f"({compile_joins(node, joins, scope)})" if joins else _compile_table(node, scope)
    alias = node.args.get("alias")
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
        return _compile_source(node.this, scope)
    if alias is None:
        raise Mistake.DERIVED_ALIAS()
    return _compile_derived(node, alias, scope)


def _compile_derived(node: exp.Expr, alias: exp.Expr, scope: Scope) -> str:
    state = scope.statement
    target, state.target = state.target, None  # a derived table may read the changed table
    query = state.compile_query(node.this, Scope(state, scope.parent, ctes=scope.ctes), True)
    state.target = target
    names = [name_of(column) for column in alias.args.get("columns") or []]
    columns = query.columns
    if names:
        columns = [c._replace(name=name) for c, name in zip(columns, names, strict=False)]
    name = name_of(alias.this)
    scope.add(Source(name, columns))
    if names:
        return f"{with_names(query.sql, names)} AS {quote_name(name)}"
    return f"({query.sql}) AS {quote_name(name)}"


def _compile_table(node: exp.Expr, scope: Scope) -> str:
    name = name_of(node.this)
    alias = name_of(node.args["alias"].this) if node.args.get("alias") else name
    database = node.text("db")
    if not database:
        columns = scope.find_cte(name)
        if columns is not None:
            scope.add(Source(alias, columns))
            return f"{quote_name(name)} AS {quote_name(alias)}"
    schema = scope.statement.schema
    if database.lower() == "information_schema":
        catalog = information_schema(name, schema)
        scope.add(Source(alias, catalog.columns))
        names = (column.name for column in catalog.columns)
        return f"{with_names(catalog.sql, names)} AS {quote_name(alias)}"
    table = find_table(node, scope)
    if scope.statement.target == name and scope.parent is not None:
        raise Mistake.UPDATE_TARGET(name)
    scope.add(table_source(table, alias, schema.name))
    return f"main.{quote_name(table.name)} AS {quote_name(alias)}"  # and no CTE of that name


def find_table(node: exp.Expr, scope: Scope) -> TableSchema:
    """Returns the table that a node names. Raises: MySQLError (1142, 1146)."""
    schema = scope.statement.schema
    return schema.table(table_name(node, schema, "SELECT"))


def table_name(node: exp.Expr, schema: Schema, command: str) -> str:
    """Returns the name of a table, which `command` is for. Raises: MySQLError (1142)."""
    name = name_of(node.this)
    if (node.text("db") or schema.name) != schema.name:
        raise Mistake.COMMAND_DENIED(command, name)
    return name


_SOURCES: ByteCache[tuple[TableSchema, str, str], Source] = ByteCache(16 * 1024**2)


def table_source(table: TableSchema, alias: str, database: str) -> Source:
    """Returns a table of the schema as a source, which no scope changes."""
    source = _SOURCES.find((table, alias, database))
    if source is None:
        source = _make_source(table, alias, database)
        num_bytes = 2 * table.num_bytes + len(table.columns) * getsizeof(alias)
        _SOURCES.keep((table, alias, database), source, num_bytes)
    return source


def _make_source(table: TableSchema, alias: str, database: str) -> Source:
    columns = [
        OutputColumn(column.name, column.type, column.type.kind is not Kind.BLOB)
        for column in table.columns
    ]
    keys = [table.primary_key, *(key for _, key in table.unique_keys)]
    keys = [key for key in keys if all(not table.by_name[n.lower()].is_nullable for n in key)]
    return Source(alias, columns, keys, database)
