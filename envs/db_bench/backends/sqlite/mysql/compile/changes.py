"""INSERT, UPDATE and DELETE."""

from collections.abc import Sequence

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.calls import compile_order
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import (
    INNER,
    compile_joins,
    compile_query,
    find_table,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope, name_of
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.select import compile_limit
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    compile_condition,
    compile_expression,
    store,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    INTERNAL,
    ColumnSchema,
    Schema,
    TableSchema,
    quote_name,
)


def compile_insert(node: exp.Expr, schema: Schema) -> str:
    """Translates INSERT. Raises: MySQLError."""
    scope = Scope(schema)
    target = node.this.this if isinstance(node.this, exp.Schema) else node.this
    table = find_table(target, scope)
    columns = _insert_columns(node, table)
    rows = _insert_rows(node.expression, columns, table, scope)
    if not rows:
        return f"INSERT INTO {quote_name(table.name)} DEFAULT VALUES"
    names = ", ".join(quote_name(column.name) for column in columns)
    return f"INSERT INTO {quote_name(table.name)} ({names}) {rows}"


def _insert_columns(node: exp.Expr, table: TableSchema) -> list[ColumnSchema]:
    if not isinstance(node.this, exp.Schema):
        return list(table.columns)
    names = [name_of(name) for name in node.this.expressions]
    for name in node.this.expressions:
        if not isinstance(name, exp.Identifier | exp.Column):  # such as a definition: `b AS x`
            raise Mistake.SYNTAX(name.name, 1)
    columns = []
    for name in names:
        if name.lower() not in table.by_name:
            raise Mistake.UNKNOWN_COLUMN(name, "field list")
        columns.append(table.by_name[name.lower()])
    for number in reversed(range(len(columns))):
        if columns[number] in columns[:number]:
            raise Mistake.FIELD_TWICE(columns[number].name)
    if names:
        _check_defaults(table, columns)
    return columns


def _check_defaults(table: TableSchema, given: Sequence[ColumnSchema]) -> None:
    for column in table.columns:
        if column not in given and not column.is_nullable and column.default is None:
            raise Mistake.NO_DEFAULT(column.name)


def _insert_rows(
    node: exp.Expr, columns: list[ColumnSchema], table: TableSchema, scope: Scope
) -> str:
    """Returns VALUES or a query; nothing for a row of defaults."""
    if not isinstance(node, exp.Values):
        return _insert_query(node, columns, scope)
    rows = []
    for number, row in enumerate(node.expressions, start=1):
        values = row.expressions if isinstance(row, exp.Tuple) else [row]
        if any(isinstance(v, exp.Anonymous) and v.name.upper() == "ROW" for v in values):
            raise Mistake.NOT_SUPPORTED("VALUES ROW()")
        if not values and len(node.expressions) == 1:
            _check_defaults(table, [])
            return ""
        if len(values) != len(columns):
            raise Mistake.COLUMN_COUNT(number)
        names = {name.name.lower() for value in values for name in value.find_all(exp.Column)}
        if names & set(table.by_name) - {"default"}:
            raise Mistake.NOT_SUPPORTED("a column in VALUES")
        cells = (
            _stored(value, column, number, scope)
            for value, column in zip(values, columns, strict=True)
        )
        rows.append(f"({', '.join(cells)})")
    return f"VALUES {', '.join(rows)}"


def _insert_query(node: exp.Expr, columns: list[ColumnSchema], scope: Scope) -> str:
    query = compile_query(node, scope)
    if len(query.columns) != len(columns):
        raise Mistake.COLUMN_COUNT(1)
    names = [quote_name(f"{INTERNAL}{index}") for index in range(len(columns))]
    values = (
        store(Fragment(name, own.type), column)
        for name, own, column in zip(names, query.columns, columns, strict=True)
    )
    listed = ", ".join(names)
    rows = f"(WITH {INNER}({listed}) AS ({query.sql}) SELECT * FROM {INNER})"
    return f"SELECT {', '.join(values)} FROM {rows} WHERE 1"


def _where(node: exp.Expr, scope: Scope) -> str:
    scope.clause = "where clause"
    where = node.args.get("where")
    return f" WHERE {compile_condition(where.this, scope)}" if where else ""


def _limited(node: exp.Expr, source: str, table: TableSchema, where: str, scope: Scope) -> str:
    """Returns WHERE for a change of the first rows in an order only."""
    if not node.args.get("order") and not node.args.get("limit"):
        return where
    scope.clause = "order clause"
    for term in node.args["order"].expressions if node.args.get("order") else ():
        if isinstance(term.this, exp.Literal) and not term.this.is_string:
            raise Mistake.UNKNOWN_COLUMN(term.this.name, scope.clause)  # there are no positions
    order = f" {compile_order(node.args['order'], scope)}" if node.args.get("order") else ""
    row = table.row_id
    return f" WHERE {row} IN (SELECT {row} FROM {source}{where}{order}{compile_limit(node)})"


def _open_tables(
    first: exp.Expr, joins: list[exp.Expr], scope: Scope
) -> tuple[str, dict[str, TableSchema]]:
    """Returns the SQL of the tables to change or to join, and the real ones by alias."""
    tables = {}
    for leaf in (first, *(join.this for join in joins)):
        if isinstance(leaf, exp.Table):
            alias = leaf.args.get("alias")
            name = name_of(alias.this) if alias else name_of(leaf.this)
            tables[name] = find_table(leaf, scope)
    return compile_joins(first, joins, scope), tables


def compile_update(node: exp.Expr, schema: Schema) -> str:
    """Translates UPDATE of one table, which may be joined to others. Raises: MySQLError."""
    if not node.expressions or not isinstance(node.this, exp.Table):
        raise Misplaced("")
    scope = Scope(schema, Scope(schema))
    joins = node.this.args.pop("joins", None) or []
    sql, tables = _open_tables(node.this, joins, scope)
    first = next(iter(tables.values()))
    scope.target = first.name
    alias, sets = _assignments(node.expressions, scope, tables)
    _check_keys(tables[alias], list(sets))
    where = _where(node, scope)
    if not joins:
        where = _limited(node, sql, first, where, scope)
        terms = (f"{quote_name(column.name)} = {value}" for column, value in sets.items())
        return f"UPDATE {sql} SET {', '.join(terms)}{where}"
    if node.args.get("order") or node.args.get("limit"):
        raise Mistake.WRONG_USAGE("UPDATE", "ORDER BY" if node.args.get("order") else "LIMIT")
    return _update_joined(alias, tables, sets, f"{sql}{where}")


def _check_keys(table: TableSchema, columns: list[ColumnSchema]) -> None:
    """Refuses to change a key: MySQL compares it row by row, in an order that SQLite lacks."""
    keys = {name.lower() for key in table.keys for name in key}
    for column in columns:
        if column.name.lower() in keys:
            raise Mistake.NOT_SUPPORTED("UPDATE of a key")


def _update_joined(
    alias: str, tables: dict[str, TableSchema], sets: dict[ColumnSchema, str], joined: str
) -> str:
    """A row that matches several times takes the first match: the one of the least row ids."""
    values = ", ".join(f"{value} AS c{index}" for index, value in enumerate(sets.values()))
    rows = {name: f"{quote_name(name)}.{table.row_id}" for name, table in tables.items()}
    row = rows.pop(alias)
    first = f", min({next(iter(rows.values()))})" if rows else ""
    table, found = quote_name(tables[alias].name), quote_name(f"{INTERNAL}s")
    terms = ", ".join(f"{quote_name(column.name)} = {found}.c{n}" for n, column in enumerate(sets))
    return (
        f"UPDATE {table} SET {terms} FROM (SELECT {row} AS r, {values}{first} "
        f"FROM {joined} GROUP BY {row}) AS {found} "
        f"WHERE {table}.{tables[alias].row_id} = {found}.r"
    )


def compile_delete(node: exp.Expr, schema: Schema) -> str:
    """Translates DELETE from one table, which may be joined to others. Raises: MySQLError."""
    if not isinstance(node.this, exp.Table):
        raise Misplaced("")
    scope = Scope(schema, Scope(schema))
    joins = node.this.args.pop("joins", None) or []
    targets = [name_of(table.this) for table in node.args.get("tables") or []]
    for table in node.args.get("tables") or []:
        if table.args.get("alias"):
            raise Misplaced(table.alias)
    sql, tables = _open_tables(node.this, joins, scope)
    for target in targets:
        if target not in tables:
            raise Mistake.UNKNOWN_TABLE_IN(target)
    if targets and (node.args.get("order") or node.args.get("limit")):
        raise Misplaced("ORDER BY" if node.args.get("order") else "LIMIT")
    if len(targets) > 1:
        raise Mistake.NOT_SUPPORTED("DELETE from several tables")
    table = tables[targets[0]] if targets else next(iter(tables.values()))
    scope.target = table.name
    where = _where(node, scope)
    if not targets:
        return f"DELETE FROM {sql}{_limited(node, sql, table, where, scope)}"
    found = f"{quote_name(targets[0])}.{table.row_id}"
    name = quote_name(table.name)
    return f"DELETE FROM {name} WHERE {table.row_id} IN (SELECT {found} FROM {sql}{where})"


def _stored(node: exp.Expr, column: ColumnSchema, row: int, scope: Scope) -> str:
    """Returns the SQL of a value of INSERT or SET, DEFAULT among them."""
    if isinstance(node, exp.Var | exp.Column) and node.sql().upper() == "DEFAULT":
        if column.default is None and not column.is_nullable:
            raise Mistake.NO_DEFAULT(column.name)
        return column.default or "NULL"
    value = compile_expression(node, scope)
    try:
        return store(value, column, row)
    except MySQLError:  # is one only where there is a row to change
        return store(value._replace(literal=None), column, row)


def _assignments(
    nodes: Sequence[exp.Expr], scope: Scope, tables: dict[str, TableSchema]
) -> tuple[str, dict[ColumnSchema, str]]:
    """Returns the alias that SET changes, and its columns with the SQL of their values.

    Later ones see the values before them. Raises: MySQLError.
    """
    sets: dict[ColumnSchema, str] = {}
    changed: set[str] = set()
    scope.clause = "field list"
    for node in nodes:
        if not isinstance(node, exp.EQ) or not isinstance(node.this, exp.Column):
            raise Misplaced(node.sql("mysql"))
        name = name_of(node.this.this).lower()
        given, scope.select_list = scope.select_list, {}
        fragment = scope.find_column(node.this)
        scope.select_list = given
        alias = next(
            source.alias for source in scope.sources if fragment in source.fragments.values()
        )
        if alias not in tables:
            raise Mistake.NOT_UPDATABLE(alias)
        changed.add(alias)
        column = tables[alias].by_name[name]
        if column in sets and len(tables) > 1:
            raise Mistake.NOT_SUPPORTED("UPDATE of a column twice")
        value = _stored(node.expression, column, 1, scope)
        sets[column] = value
        scope.select_list[name] = Fragment(f"({value})", column.type, True)
    scope.select_list = {}
    if len(changed) > 1:
        raise Mistake.NOT_SUPPORTED("UPDATE of several tables")
    return changed.pop(), sets
