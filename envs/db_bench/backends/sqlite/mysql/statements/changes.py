"""UPDATE and DELETE, with MySQL's joins, orders and limits."""

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.errors import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.coercion import collated
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.compiler import (
    compile_condition,
    compile_expression,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.scopes import (
    Scope,
    StatementState,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.statements.from_clause import (
    compile_joins,
    find_table,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.statements.select import compile_limit
from agentpeft.envs.db_bench.backends.sqlite.mysql.statements.stored import assignments
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    INTERNAL,
    ColumnSchema,
    TableSchema,
    quote_name,
    quote_text,
)


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
    terms = []
    for ordered in node.args["order"].expressions if node.args.get("order") else ():
        value = compile_expression(ordered.this, scope)
        terms.append(collated(value) + (" DESC" if ordered.args.get("desc") else ""))
    order = f" ORDER BY {', '.join(terms)}" if terms else ""
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
    slots = [quote_text(f".{name}") for name in targets]  # no name of an agent's own variable
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
