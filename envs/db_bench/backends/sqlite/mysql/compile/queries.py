"""Queries: FROM, SELECT with its clauses in MySQL's order, UNION, queries in expressions."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    direction,
    is_in,
    order_value,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    BareColumn,
    CompiledQuery,
    Fragment,
    OutputColumn,
    Pair,
    Scope,
    Source,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    MAX_CHARS,
    align,
    collated,
    compile_condition,
    compile_expression,
    convert,
    handles,
    ordered,
    rounded,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, TableSchema, quote_name


def compile_query(node: nodes.Query, parent: Scope, *, is_derived: bool = False) -> CompiledQuery:
    """Translates a query, whose columns are called c0, c1 and so on. Raises: MySQLError.

    `is_derived`: its result is kept as a table, with rounded decimals.
    """
    scope = Scope(parent.schema, parent, parent.target, is_derived)
    if isinstance(node.body, nodes.Union):
        return _compile_union(node.body, scope)
    from_sql = compile_joins(node.body.sources, scope) if node.body.sources else ""
    return compile_select(node.body, node.tail, scope, from_sql)


_DISTINCT = "SELECT DISTINCT * FROM ("


def _compile_union(node: nodes.Union, scope: Scope) -> CompiledQuery:
    left = compile_query(node.left, scope, is_derived=True)
    right = compile_query(node.right, scope, is_derived=True)
    if len(left.columns) != len(right.columns):
        raise Mistake.UNION_COLUMNS()
    columns = []
    is_third = isinstance(node.left.body, nodes.Union)
    for first, second in zip(left.columns, right.columns, strict=True):
        kind = replace(types.merge_types((first.type, second.type)), is_exact=True)
        is_converted = first.type.kind not in (kind.kind, Kind.NULL)
        if is_third and is_converted and kind.kind not in types.NUMBERS:
            raise Mistake.NOT_SUPPORTED(f"{node.operator} of three types")
        columns.append(first._replace(type=kind))
    # SQLite's UNION gives the last of 'a' and 'A', MySQL's the first.
    word = "UNION ALL" if node.operator == "UNION" else node.operator
    first_sql = _member(left, columns)
    inner = node.left.body
    if isinstance(inner, nodes.Union) and inner.operator == node.operator == "UNION":
        is_same = all(a.type == b.type for a, b in zip(columns, left.columns, strict=True))
        if is_same and (inner.is_all or not node.is_all):  # SQLite's parser nests no deeper than 7
            first_sql = left.sql.removeprefix(_DISTINCT)[: None if inner.is_all else -1]
    sql = f"{first_sql} {word} {_member(right, columns)}"
    is_list = word != "UNION ALL" or node.is_all
    return CompiledQuery(sql if is_list else f"{_DISTINCT}{sql})", columns)


def _member(query: CompiledQuery, columns: list[OutputColumn]) -> str:
    """Returns a member of a UNION with values of the common types."""
    values = []
    for index, (own, column) in enumerate(zip(query.columns, columns, strict=True)):
        value = Fragment(f"c{index}", own.type, own.is_collated)
        if own.type.kind is Kind.DECIMAL and not own.type.is_exact:
            value = value._replace(type=replace(own.type, scale=column.type.scale))
        values.append(f"{collated(convert(rounded(value), column.type))} AS c{index}")
    return f"SELECT {', '.join(values)} FROM ({query.sql})"


def compile_joins(joins: tuple[nodes.Join, ...], scope: Scope) -> str:
    """Returns the tables of FROM; adds them to the scope. Raises: MySQLError."""
    sql = ""
    for source, side, condition in joins:
        if side == ",":
            scope.visible_from = len(scope.sources)  # ON sees only what follows a comma
        if side == "RIGHT" and scope.visible_from:
            raise Mistake.NOT_SUPPORTED("RIGHT JOIN after a comma")
        num_before = len(scope.sources)
        table = _compile_source(source, scope)
        on = ""
        if condition is not None:
            scope.clause = "on clause"
            on = f" ON {compile_condition(condition, scope)}"
            is_inner = side not in ("LEFT", "RIGHT")
            scope.pairs += _equalities(condition, scope, is_sure=is_inner)
            scope.bare.clear()
        if side == "RIGHT":
            scope.pairs = [(left, right, False) for left, right, _ in scope.pairs]
            sql = f"{table} LEFT JOIN {sql if num_before == 1 else f'({sql})'}{on}"
        elif sql:
            sql = f"{sql} {'LEFT ' if side == 'LEFT' else ''}JOIN {table}{on}"
        else:
            sql = table
    scope.visible_from = 0
    return sql


def _compile_source(node: nodes.TableName | nodes.Derived, scope: Scope) -> str:
    if isinstance(node, nodes.Derived):
        outer = Scope(scope.schema, None if node.is_common else scope.parent)
        query = compile_query(node.query, outer, is_derived=True)  # it may read a changed table
        if len(query.sql) > MAX_CHARS:  # a query of WITH stands wherever its name does
            raise Mistake.STACK()
        if scope.target and f"main.{quote_name(scope.target)} AS" in query.sql:
            body, tail = node.query  # MySQL may merge a plain one into the query around
            is_plain = isinstance(body, nodes.Select) and not (body.group or body.is_distinct)
            if is_plain and tail.limit is None and not query.is_single_row:
                raise Mistake.NOT_SUPPORTED("a derived table of the changed table")
        names = [column.name.lower() for column in query.columns]
        for number, name in enumerate(names):
            if name in names[:number] and node.alias:
                raise Mistake.DUPLICATE_COLUMN(query.columns[number].name)
            if max(name, default=" ") > "\uffff":
                raise Mistake.NOT_SUPPORTED(f"a column called {name}")  # which no name can be
        name = scope.name_source()
        scope.add(Source(node.alias, name, query.columns))
        return f"({query.sql}) AS {name}"
    return add_table(node, find_table(node, scope.schema), scope)


def add_table(node: nodes.TableName, table: TableSchema, scope: Scope) -> str:
    """Returns a table as FROM names it; adds it to the scope. Raises: MySQLError."""
    if scope.target == node.name:
        raise Mistake.UPDATE_TARGET(node.name)
    columns = [OutputColumn(column.name, column.type) for column in table.columns]
    name = scope.name_source()
    scope.add(Source(node.alias, name, columns, scope.schema.name))
    return f"main.{quote_name(table.name)} AS {name}"


def find_table(node: nodes.TableName, schema: types.Schema, command: str = "SELECT") -> TableSchema:
    """Returns the table that a node names. Raises: MySQLError (1142, 1146, 1235)."""
    check_database(node, schema, command)
    if node.name not in schema.by_name:
        raise Mistake.NO_TABLE(schema.name, node.name)
    return schema.by_name[node.name]


def check_database(node: nodes.TableName, schema: types.Schema, command: str) -> None:
    """Raises: MySQLError (1142, 1235) for a table of another database."""
    if node.database.lower() == "information_schema":
        raise Mistake.NOT_SUPPORTED("information_schema")
    if (node.database or schema.name) != schema.name:
        raise Mistake.COMMAND_DENIED(command, node.name)


@handles(nodes.Query)
def _scalar_subquery(node: nodes.Query, scope: Scope) -> Fragment:
    """A query as a value. SQLite would take the first of several rows; MySQL raises error 1242."""
    query = compile_query(node, scope)
    if len(query.columns) != 1:
        raise Mistake.OPERAND(1)
    kind = query.columns[0].type
    if query.is_single_row:
        return Fragment(f"({query.sql})", kind)
    value = "CASE count(*) > 1 WHEN 1 THEN my_too_many_rows() ELSE max(c0) END"
    return Fragment(f"(SELECT {value} FROM (SELECT c0 FROM ({query.sql}) LIMIT 2))", kind)


@handles("EXISTS")
def _exists(node: nodes.Operator, scope: Scope) -> Fragment:
    (query,) = node.operands
    assert isinstance(query, nodes.Query)  # noqa: S101 (the parser makes no other)
    return Fragment(f"EXISTS ({compile_query(query, scope).sql})", types.INTEGER)


@handles("IN", "NOT IN")
def _in(node: nodes.Operator, scope: Scope) -> Fragment:
    left = compile_expression(node.operands[0], scope)
    others = node.operands[1:]
    if not isinstance(others[0], nodes.Query) or len(others) > 1:
        return is_in(left, [compile_expression(value, scope) for value in others], node.operator)
    query = compile_query(others[0], scope)
    if len(query.columns) != 1:
        raise Mistake.OPERAND(1)
    if others[0].tail.limit is not None:
        raise Mistake.NOT_SUPPORTED("LIMIT & IN/ALL/ANY/SOME subquery")
    value, column = align([left, Fragment("c0", query.columns[0].type, True)])
    inner = query.sql if column == "c0" else f"SELECT {column} FROM ({query.sql})"
    return Fragment(f"({value} {node.operator} ({inner}))", types.INTEGER)


Projections = list[tuple[str, Fragment]]
"""The select list: names and values."""
NumberedColumns = list[tuple[int, BareColumn]]
"""Bare columns, each with the number of the expression that it stands in."""


def compile_select(
    node: nodes.Select, tail: nodes.Tail, scope: Scope, from_sql: str
) -> CompiledQuery:
    """Translates one SELECT block, whose tables are in the scope. Raises: MySQLError.

    The order of the clauses here is MySQL's, so that of several mistakes the same one is reported.
    It is also what each clause knows of the others: GROUP BY and HAVING see the select list's
    aliases, WHERE does not; the select list is checked against GROUP BY.
    """
    for item in node.items:
        is_star = isinstance(item.value, nodes.Star) and not item.value.table
        if is_star and not scope.sources:
            raise Mistake.NO_TABLES()
        if item.is_alias:
            scope.aliases.setdefault(item.name.lower(), item.value)
    scope.begin("where clause")
    where = [compile_condition(node.where, scope)] if node.where else []
    group = _compile_group(node, scope)
    projections, bare = _compile_projections(node, scope)
    having = _compile_having(node, scope, projections)
    order = _compile_order(node, tail, scope, projections)
    _check_full_group_by(node, scope, bare)
    if having and not group and not scope.num_aggregates:  # SQLite refuses this HAVING
        where, having = [*where, *having], []
    is_aggregated = bool(group or scope.num_aggregates)
    if node.is_distinct or (scope.is_derived and (is_aggregated or having or tail.limit)):
        # A table is made of these; a plain derived one MySQL merges into the query around.
        projections = [(name, rounded(value)) for name, value in projections]
    parts = [
        "SELECT " + ("DISTINCT " if node.is_distinct else ""),
        ", ".join(f"{collated(value)} AS c{n}" for n, (_, value) in enumerate(projections)),
        from_sql and f" FROM {from_sql}",
        where and f" WHERE {' AND '.join(where)}",
        group and f" GROUP BY {', '.join(group)}",
        having and f" HAVING {having[0]}",
        order and f" ORDER BY {', '.join(order)}",
        compile_limit(tail),
    ]
    columns = [
        OutputColumn(name, value.type, value.is_collated or value.type.kind is Kind.TEXT)
        for name, value in projections
    ]
    is_single = (bool(scope.num_aggregates) and not group) or not from_sql
    is_single |= tail.limit is not None and tail.limit[0] <= 1
    sql = "".join(part for part in parts if part)
    return CompiledQuery(sql, columns, is_single)


def _compile_group(node: nodes.Select, scope: Scope) -> list[str]:
    scope.begin("group statement")
    scope.is_grouped = bool(node.group)
    terms = []
    for term in node.group:
        expression = _ordinal(term, node, scope)
        if (
            isinstance(term, nodes.ColumnName)
            and not term.table
            and not scope.has_column(term.name)
        ):
            expression = scope.aliases.get(term.name.lower(), term)
        scope.aggregates_allowed = expression is not term
        terms.append(compile_expression(expression, scope))
        if scope.num_aggregates:
            names = [item.name for item in node.items if item.value is expression]
            raise Mistake.WRONG_GROUP_FIELD(names[0])
        if isinstance(expression, nodes.ColumnName):
            scope.group_names.add(expression.name.lower())
    scope.group_sql = {term.sql for term in terms}
    return [collated(rounded(term)) if term.literal is None else "NULL" for term in terms]


def find_position(term: nodes.Expression, num_columns: int, clause: str) -> int | None:
    """Returns the index of the column that `GROUP BY 2` or `ORDER BY 2` means, None for others.

    Raises: MySQLError (1054; 1235 for another literal, which MariaDB may read as a position).
    """
    if isinstance(term, nodes.Operator) and term.operator == "NEGATIVE":
        if isinstance(term.operands[0], nodes.Constant):
            raise Mistake.NOT_SUPPORTED(f"a negative number in the {clause}")
        return None
    if not isinstance(term, nodes.Constant):
        return None
    if term.kind != "number" or not term.text.isdigit() or len(term.text) > 18:
        raise Mistake.NOT_SUPPORTED(f"{term.text} in the {clause}")
    if not 1 <= int(term.text) <= num_columns:
        raise Mistake.UNKNOWN_COLUMN(term.text, clause)
    return int(term.text) - 1


def _ordinal(term: nodes.Expression, node: nodes.Select, scope: Scope) -> nodes.Expression:
    position = find_position(term, len(node.items), scope.clause)
    return term if position is None else node.items[position].value


def _compile_projections(node: nodes.Select, scope: Scope) -> tuple[Projections, NumberedColumns]:
    scope.begin("field list", aggregates=True)
    projections: Projections = []
    bare: NumberedColumns = []
    for item in node.items:
        if isinstance(item.value, nodes.Star):
            for column, value in _expand_star(item.value.table, scope):
                projections.append((column.name, value))
                bare.append((len(projections), column))
            continue
        num_before = scope.num_aggregates
        projections.append((item.name, compile_expression(item.value, scope)))
        if scope.num_aggregates > num_before:
            scope.aggregated.add(item.name.lower())
        bare += [(len(projections), column) for column in scope.bare]
        scope.bare.clear()
    return projections, bare


def _expand_star(table: str, scope: Scope) -> list[tuple[BareColumn, Fragment]]:
    sources = [source for source in scope.sources if not table or source.alias == table]
    if not sources:
        raise Mistake.UNKNOWN_TABLE(table)
    columns = []
    for source in sources:
        for fragment, bare in source.columns.values():
            if fragment.type.is_opaque:
                raise Mistake.NOT_SUPPORTED(f"the type of the column {bare.name}")
            columns.append((bare, fragment))
    return columns


def _compile_having(node: nodes.Select, scope: Scope, projections: Projections) -> list[str]:
    """HAVING sees the select list, the GROUP BY expressions and aggregates, and no other column."""
    if node.having is None:
        return []
    scope.begin("having clause", aggregates=True)
    scope.select_list = {
        name.lower(): value
        for name, value in reversed(projections)
        if name.lower() not in scope.group_names
    }
    condition = compile_condition(node.having, scope)
    for column in scope.bare:
        named = [value.sql for name, value in projections if name.lower() == column.name.lower()]
        if column.sql not in named:
            raise Mistake.UNKNOWN_COLUMN(column.name, scope.clause)
    return [condition]


def _compile_order(
    node: nodes.Select, tail: nodes.Tail, scope: Scope, projections: Projections
) -> list[str]:
    scope.begin("order clause", aggregates=True)
    aliased = {
        name.lower(): value
        for name, value in reversed(projections)
        if name.lower() in scope.aliases and not scope.has_column(name)
    }
    terms = []
    for number, (term, is_descending) in enumerate(tail.order, start=1):
        sql = order_term(term, projections)
        if sql is None:
            scope.select_list = aliased
            value = compile_expression(term, scope)
            scope.select_list = {}
            if node.is_distinct:
                _check_distinct_order(value, scope, projections, number)
            sql = order_value(value)
        if node.group:
            bare = [(number, column) for column in scope.bare]
            _check_full_group_by(node, scope, bare, "ORDER BY clause")
        scope.bare.clear()
        terms.append(sql + direction(is_descending))
    return terms


def _check_distinct_order(
    value: Fragment, scope: Scope, projections: Projections, number: int
) -> None:
    shown = {projection.sql for _, projection in projections}
    for column in scope.bare if value.sql not in shown else ():
        if column.sql not in shown:
            raise Mistake.DISTINCT_ORDER(number, column.title)


def order_term(term: nodes.Expression, projections: Projections) -> str | None:
    """Returns a term that is a position or a name of the select list; None for others."""
    position = find_position(term, len(projections), "order clause")
    if position is None and isinstance(term, nodes.ColumnName) and not term.table:
        named = [
            (index, value.sql)
            for index, (name, value) in enumerate(projections)
            if name.lower() == term.name.lower()
        ]
        if len({sql for _, sql in named}) > 1:
            raise Mistake.AMBIGUOUS(term.name, "order clause")
        position = named[0][0] if named else None
    if position is None:
        return None
    value = projections[position][1]
    if rounded(value) != value:
        return rounded(value).sql
    sql = str(position + 1)
    return ordered(value._replace(sql=sql)) if value.type.kind is Kind.TEXT else sql


def compile_limit(tail: nodes.Tail) -> str:
    """Returns the LIMIT clause."""
    if tail.limit is None:
        return ""
    count, offset = (min(number, (1 << 63) - 1) for number in tail.limit)
    return f" LIMIT {count}" + (f" OFFSET {offset}" if offset else "")


def _check_full_group_by(
    node: nodes.Select, scope: Scope, bare: NumberedColumns, clause: str = "SELECT list"
) -> None:
    """ONLY_FULL_GROUP_BY.

    Raises: MySQLError (1055, 1140) for a bare column that neither groups nor equalities determine.
    """
    if not bare or not (node.group or scope.num_aggregates):
        return
    if scope.determined is None:
        scope.pairs += _equalities(node.where, scope, is_sure=True)
        scope.determined = _close({*scope.group_sql, ""}, scope.pairs, is_sure=True)
    scope.bare.clear()
    for number, column in bare:
        if column.sql in scope.determined:
            continue
        if column.sql in _close(scope.determined, scope.pairs, is_sure=False):
            raise Mistake.NOT_SUPPORTED(f"{column.title}, which an equality may determine")
        if node.group:
            raise Mistake.FULL_GROUP_BY(number, clause, column.title)
        raise Mistake.MIXED_GROUP(number, column.title)


def _close(known: set[str], pairs: Iterable[Pair], *, is_sure: bool) -> set[str]:
    """Returns the columns (as SQL) that known ones determine by equalities, or may determine."""
    taken, size = {(left, right) for left, right, holds in pairs if holds or not is_sure}, 0
    while len(known) > size:
        size = len(known)
        known = known | {right for left, right in taken if left in known}
    return known


def _equalities(node: "nodes.Expression | None", scope: Scope, *, is_sure: bool) -> Iterator[Pair]:
    """Yields the pairs of a condition's equalities; those of a text and a number are not sure."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, nodes.Operator) and part.operator == "AND":
            pending += part.operands
        if not isinstance(part, nodes.Operator) or part.operator != "=" or _has_query(part):
            continue
        sides = []
        for operand in part.operands:
            num_uses = scope.num_uses
            value = compile_expression(operand, scope)
            is_constant = scope.num_uses == num_uses
            if is_constant or isinstance(operand, nodes.ColumnName):
                sides.append(("" if is_constant else value.sql, value.type.kind is Kind.TEXT))
        if len(sides) == 2:
            (left, left_is_text), (right, right_is_text) = sides
            yield left, right, is_sure and (left_is_text or not right_is_text)
            yield right, left, is_sure and (right_is_text or not left_is_text)


def _has_query(node: object) -> bool:
    is_query = isinstance(node, nodes.Query)
    return is_query or (isinstance(node, tuple) and any(map(_has_query, node)))
