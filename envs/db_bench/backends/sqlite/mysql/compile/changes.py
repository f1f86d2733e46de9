"""INSERT, REPLACE, UPDATE and DELETE."""

from collections.abc import Sequence

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import store
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    compile_condition,
    compile_expression,
    compile_order,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.from_clause import (
    compile_joins,
    find_table,
    table_source,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import row_values
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    NEW_ROW,
    Fragment,
    Scope,
    Source,
    StatementState,
    name_of,
    with_names,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.select import compile_limit
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    INTERNAL,
    ColumnSchema,
    TableSchema,
    quote_name,
    quote_text,
)


def compile_insert(node: exp.Expr, state: StatementState) -> list[str]:
    """Translates INSERT and REPLACE. Raises: MySQLError."""
    scope = Scope(state)
    target = node.this.this if isinstance(node.this, exp.Schema) else node.this
    table = find_table(target, scope)
    columns = _insert_columns(node, table)
    is_lenient = bool(node.args.get("ignore"))
    verb = (
        "INSERT OR REPLACE" if state.is_replace else "INSERT OR IGNORE" if is_lenient else "INSERT"
    )
    rows = _insert_rows(node.expression, columns, table, scope, is_lenient)
    conflict = _conflict(node, table, state)
    if not columns:
        return [f"{verb} INTO {quote_name(table.name)} DEFAULT VALUES"]
    names = ", ".join(quote_name(column.name) for column in columns)
    return [f"{verb} INTO {quote_name(table.name)} ({names}) {rows}{conflict}"]


def _insert_columns(node: exp.Expr, table: TableSchema) -> list[ColumnSchema]:
    if not isinstance(node.this, exp.Schema):
        return list(table.columns)
    names = [name_of(name) for name in node.this.expressions]
    for name in node.this.expressions:
        if not isinstance(name, exp.Identifier | exp.Column):  # such as a definition: `b AS x`
            raise Mistake.SYNTAX(name.name, 1)
    columns = [table.column(name, "field list") for name in names]
    for number in reversed(range(len(columns))):
        if columns[number] in columns[:number]:
            raise Mistake.FIELD_TWICE(columns[number].name)
    if names:
        _check_defaults(table, columns)
    return columns


def _check_defaults(table: TableSchema, given: Sequence[ColumnSchema]) -> None:
    for column in table.columns:
        has_default = column.is_nullable or column.default is not None or column.is_auto_increment
        if column not in given and not has_default:
            raise Mistake.NO_DEFAULT(column.name)


def _insert_rows(
    node: exp.Expr,
    columns: list[ColumnSchema],
    table: TableSchema,
    scope: Scope,
    is_lenient: bool,
) -> str:
    if not isinstance(node, exp.Values):
        return _insert_query(node, columns, scope, is_lenient)
    rows = []
    for number, row in enumerate(node.expressions, start=1):
        values = row_values(row)
        if not values:
            columns.clear()
            _check_defaults(table, [])
            return ""
        if len(values) != len(columns):
            raise Mistake.COLUMN_COUNT(number)
        cells = (
            stored(value, column, number, scope, is_lenient)
            for value, column in zip(values, columns, strict=True)
        )
        rows.append(f"({', '.join(cells)})")
    return f"VALUES {', '.join(rows)}"


def _insert_query(
    node: exp.Expr, columns: list[ColumnSchema], scope: Scope, is_lenient: bool
) -> str:
    query = scope.statement.compile_query(node, scope, False)
    if len(query.columns) != len(columns):
        raise Mistake.COLUMN_COUNT(1)
    names = [f"c{index}" for index in range(len(columns))]
    values = (
        store(Fragment(quote_name(name), own.type, own.is_collated), column, 1, is_lenient)
        for name, own, column in zip(names, query.columns, columns, strict=True)
    )
    return f"SELECT {', '.join(values)} FROM {with_names(query.sql, names)} WHERE 1"


def _conflict(node: exp.Expr, table: TableSchema, state: StatementState) -> str:
    conflict = node.args.get("conflict")
    if conflict is None:
        return ""
    scope = Scope(state)
    source = table_source(table, table.name, state.schema.name)
    scope.add(source)
    alias = node.expression.args.get("alias")
    for name in (NEW_ROW, name_of(alias.this) if alias else ""):
        if name:
            scope.add(_new_row(source, name))
    sets = assignments(conflict.expressions, scope, {table.name: table})
    terms = (f"{quote_name(column.name)} = {value}" for _, column, value in sets)
    return f" ON CONFLICT DO UPDATE SET {', '.join(terms)}"


def _new_row(source: Source, alias: str) -> Source:
    new = Source(alias, source.columns, is_hidden=True)
    new.fragments = {
        name: value._replace(sql=f"excluded.{value.sql.split('.', 1)[1]}")
        for name, value in source.fragments.items()
    }
    return new


def _where(node: exp.Expr, scope: Scope) -> str:
    scope.clause = "where clause"
    where = node.args.get("where")
    return f" WHERE {compile_condition(where.this, scope)}" if where else ""


def _limited(node: exp.Expr, source: str, table: TableSchema, where: str, scope: Scope) -> str:
    """Returns WHERE for a change of the first rows in an order only."""
    if not node.args.get("order") and not node.args.get("limit"):
        return where
    if node.args.get("offset"):
        raise Misplaced(f", {node.args['limit'].expression.name}")
    scope.clause = "order clause"
    order = compile_order(node.args.get("order"), scope)
    row = table.row_id
    return f" WHERE {row} IN (SELECT {row} FROM {source}{where}{order}{compile_limit(node)})"


def _open_tables(
    first: exp.Expr, joins: list[exp.Expr], scope: Scope
) -> tuple[str, dict[str, TableSchema]]:
    """Returns the SQL of the tables to change or to join, and the real ones by alias."""
    tables = {
        alias: table
        for node in (first, *(join.this for join in joins))
        for leaf in node.find_all(exp.Table)
        if not leaf.find_ancestor(exp.Select)
        for alias, table in [_aliased(leaf, scope)]
    }
    return compile_joins(first, joins, scope), tables


def _aliased(node: exp.Expr, scope: Scope) -> tuple[str, TableSchema]:
    alias = node.args.get("alias")
    return name_of(alias.this) if alias else name_of(node.this), find_table(node, scope)


def compile_update(node: exp.Expr, state: StatementState) -> list[str]:
    """Translates UPDATE of one table or several. Raises: MySQLError."""
    scope = Scope(state, Scope(state))
    if not node.expressions:
        raise Misplaced("")
    joins = node.this.args.pop("joins", None) or []
    if node.args.get("from_"):
        raise Misplaced("FROM")
    sql, tables = _open_tables(node.this, joins, scope)
    first = next(iter(tables.values()))
    state.target = first.name
    sets = assignments(node.expressions, scope, tables)
    where = _where(node, scope)
    if not joins:
        where = _limited(node, sql, first, where, scope)
        terms = (f"{quote_name(column.name)} = {value}" for _, column, value in sets)
        return [f"UPDATE {sql} SET {', '.join(terms)}{where}"]
    if node.args.get("order") or node.args.get("limit"):
        raise Mistake.WRONG_USAGE("UPDATE", "ORDER BY" if node.args.get("order") else "LIMIT")
    statements = []
    for alias in dict.fromkeys(alias for alias, _, _ in sets):
        own = [(column, value) for name, column, value in sets if name == alias]
        statements += _update_joined(alias, tables, own, f"{sql}{where}")
    return statements


def _update_joined(
    alias: str, tables: dict[str, TableSchema], sets: list[tuple[ColumnSchema, str]], joined: str
) -> list[str]:
    """A row that matches several times takes the first match: the one of the least row ids."""
    values = ", ".join(f"{value} AS c{index}" for index, (_, value) in enumerate(sets))
    rows = {name: f"{quote_name(name)}.{table.row_id}" for name, table in tables.items()}
    row = rows.pop(alias)
    first = f", min({next(iter(rows.values()))})" if rows else ""
    table, found = quote_name(tables[alias].name), quote_name(f"{INTERNAL}s")
    terms = ", ".join(
        f"{quote_name(column.name)} = {found}.c{n}" for n, (column, _) in enumerate(sets)
    )
    return [
        f"UPDATE {table} SET {terms} FROM (SELECT {row} AS r, {values}{first} "
        f"FROM {joined} GROUP BY {row}) AS {found} "
        f"WHERE {table}.{tables[alias].row_id} = {found}.r"
    ]


def compile_delete(node: exp.Expr, state: StatementState) -> list[str]:
    """Translates DELETE from one table or several. Raises: MySQLError."""
    scope = Scope(state, Scope(state))
    if not isinstance(node.this, exp.Table):
        raise Misplaced("")
    using = node.args.get("using") or []
    first = using[0] if using else node.this
    joins = first.args.pop("joins", None) or []
    targets = [name_of(table.this) for table in node.args.get("tables") or []]
    if using:
        targets = [name_of(node.this.this)]
    sql, tables = _open_tables(first, joins, scope)
    table = next(iter(tables.values()))
    state.target = table.name
    where = _where(node, scope)
    if not targets:
        return [f"DELETE FROM {sql}{_limited(node, sql, table, where, scope)}"]
    for target in targets:
        if target not in tables:
            raise Mistake.UNKNOWN_TABLE_IN(target)
    if len(targets) == 1:
        row = tables[targets[0]].row_id
        name, found = quote_name(tables[targets[0]].name), f"{quote_name(targets[0])}.{row}"
        return [f"DELETE FROM {name} WHERE {row} IN (SELECT {found} FROM {sql}{where})"]
    slots = [quote_text(f"ROWS {name}") for name in targets]  # agents' variables: in lower case
    rows = [
        f"',' || group_concat(DISTINCT {quote_name(name)}.{tables[name].row_id}) || ','"
        for name in targets
    ]
    keep = (f"my_set({slot}, {found})" for slot, found in zip(slots, rows, strict=True))
    return [  # all rows are found before the first one goes
        f"SELECT {', '.join(keep)} FROM {sql}{where}",
        *(
            f"DELETE FROM {quote_name(tables[name].name)} "
            f"WHERE instr(my_get({slot}), ',' || {tables[name].row_id} || ',')"
            for name, slot in zip(targets, slots, strict=True)
        ),
    ]


def stored(node: exp.Expr, column: ColumnSchema, row: int, scope: Scope, is_lenient: bool) -> str:
    """Returns the SQL of a value of INSERT or SET, DEFAULT among them."""
    if isinstance(node, exp.Var | exp.Column) and node.sql().upper() == "DEFAULT":
        if column.default is None and not column.is_nullable and not column.is_auto_increment:
            raise Mistake.NO_DEFAULT(column.name)
        return column.default or "NULL"
    value = compile_expression(node, scope)
    try:
        return store(value, column, row, is_lenient)
    except MySQLError:  # is one only where there is a row to change
        return store(value._replace(literal=None), column, row, is_lenient)


def assignments(
    nodes: Sequence[exp.Expr], scope: Scope, tables: dict[str, TableSchema]
) -> list[tuple[str, ColumnSchema, str]]:
    """Returns (alias, column, SQL of the value) of SET; later ones see the values before them."""
    found: dict[tuple[str, str], tuple[str, ColumnSchema, str]] = {}
    scope.clause = "field list"
    for node in nodes:
        if not isinstance(node, exp.EQ) or not isinstance(node.this, exp.Column):
            raise Misplaced(node.sql("mysql"))
        name, table = name_of(node.this.this), name_of(node.this.args.get("table"))
        given, scope.select_list = scope.select_list, {}
        fragment = scope.find_column(name, table)
        scope.select_list = given
        alias = next(
            source.alias for source in scope.sources if fragment in source.fragments.values()
        )
        if alias not in tables:
            raise Mistake.NOT_UPDATABLE(alias)
        column = tables[alias].by_name[name.lower()]
        value = stored(node.expression, column, 1, scope, False)
        found[alias, name.lower()] = (alias, column, value)
        scope.select_list[name.lower()] = Fragment(f"({value})", column.type, True)
    scope.select_list = {}
    return list(found.values())
