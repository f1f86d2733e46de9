"""One SELECT block: its clauses in the order in which MySQL looks at them."""

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.calls import direction
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    BareColumn,
    Fragment,
    OutputColumn,
    Query,
    Scope,
    name_of,
    replace_unnamable,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    collated,
    compile_condition,
    compile_expression,
    rounded,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, quote_name


def compile_select(node: exp.Expr, scope: Scope, from_sql: str) -> Query:
    """Translates one SELECT block, whose tables are in the scope. Raises: MySQLError.

    The order of the clauses here is MySQL's, so that of several mistakes the same one is reported.
    It is also what each clause knows of the others: GROUP BY and HAVING see the select list's
    aliases, WHERE does not; the select list is checked against GROUP BY.
    """
    args = node.args
    if not node.expressions:
        raise Misplaced("")
    for projection in node.expressions:
        if isinstance(projection, exp.Star) and not scope.sources:
            raise Mistake.NO_TABLES()
        if isinstance(projection, exp.Alias):
            scope.aliases.setdefault(name_of(projection.args["alias"]).lower(), projection.this)
    scope.clause = "where clause"
    where = [compile_condition(args["where"].this, scope)] if args.get("where") else []
    scope.bare.clear()
    group = _compile_group(node, scope)
    projections, bare = _compile_projections(node, scope)
    having = _compile_having(node, scope, projections)
    order = _compile_order(node, scope, projections)
    _check_full_group_by(node, scope, bare)
    if having and not group and not scope.num_aggregates:  # SQLite refuses this HAVING
        where, having = [*where, *having], []
    if args.get("distinct") or (scope.is_derived and _is_kept(node, scope)):
        projections = [(name, _kept(value)) for name, value in projections]
    parts = [
        "SELECT " + ("DISTINCT " if args.get("distinct") else ""),
        ", ".join(_output(name, value, scope.is_derived) for name, value in projections),
        from_sql and f" FROM {from_sql}",
        where and f" WHERE {' AND '.join(where)}",
        group and f" GROUP BY {', '.join(group)}",
        having and f" HAVING {having[0]}",
        order and f" ORDER BY {', '.join(order)}",
        compile_limit(node),
    ]
    columns = [
        OutputColumn(name, value.type, value.is_collated or value.type.kind is Kind.TEXT)
        for name, value in projections
    ]
    is_single = (bool(scope.num_aggregates) and not group) or not from_sql
    is_limited = args.get("limit") is not None
    if is_limited and args["limit"].expression.name in ("0", "1"):
        is_single = True
    return Query("".join(part for part in parts if part), columns, is_single, is_limited)


def _output(name: str, value: Fragment, is_derived: bool) -> str:
    """Returns a column of the result; of a derived table with its name."""
    return f"{collated(value)} AS {quote_name(name)}" if is_derived else collated(value)


def _is_kept(node: exp.Expr, scope: Scope) -> bool:
    """Returns whether a derived table is really made; others MySQL merges into their query."""
    clauses = (node.args.get(name) for name in ("group", "having", "distinct", "limit"))
    return bool(scope.num_aggregates) or any(clauses)


def _kept(value: Fragment) -> Fragment:
    """Returns a value as a table holds it: with its type's digits."""
    if value.type.kind is Kind.DOUBLE and value.type.scale:
        return value._replace(sql=f"round({value.sql}, {value.type.scale})")
    return rounded(value)


def _compile_group(node: exp.Expr, scope: Scope) -> list[str]:
    group = node.args.get("group")
    if group is None:
        return []
    scope.clause = "group statement"
    scope.is_grouped = True
    terms = []
    for term in group.expressions:
        num_aggregates = scope.num_aggregates
        expression = _ordinal(term, node, scope) or term
        if (
            isinstance(term, exp.Column)
            and not term.table
            and not scope.has_column(name_of(term.this))
        ):
            expression = scope.aliases.get(name_of(term.this).lower(), term)
        scope.aggregates_allowed = True
        value = compile_expression(expression, scope)
        scope.aggregates_allowed = False
        if scope.num_aggregates > num_aggregates:
            raise Mistake.WRONG_GROUP_FIELD(expression.sql("mysql").lower())
        terms.append(value)
    scope.group_sql = {term.sql for term in terms}
    scope.bare.clear()
    # A literal groups nothing; SQLite would read a number in its place as a position.
    return [collated(rounded(term)) if term.literal is None else "NULL" for term in terms]


def _ordinal(term: exp.Expr, node: exp.Expr, scope: Scope) -> exp.Expr | None:
    """Returns the projection that `GROUP BY 2` means."""
    if not isinstance(term, exp.Literal) or term.is_string:
        return None
    if not term.name.isdigit():
        return None
    position = int(term.name)
    if not 1 <= position <= len(node.expressions):
        raise Mistake.UNKNOWN_COLUMN(term.name, scope.clause)
    projection: exp.Expr = node.expressions[position - 1]
    return projection.this if isinstance(projection, exp.Alias) else projection


def _compile_projections(
    node: exp.Expr, scope: Scope
) -> tuple[list[tuple[str, Fragment]], list[tuple[int, BareColumn]]]:
    """Returns (name, value) of the select list, and its bare columns with their positions."""
    scope.clause = "field list"
    scope.aggregates_allowed = scope.windows_allowed = True
    projections: list[tuple[str, Fragment]] = []
    bare: list[tuple[int, BareColumn]] = []
    has_names = scope.is_derived or _has_quoted_names(node)
    for projection in node.expressions:
        star = projection.this if isinstance(projection, exp.Column) else projection
        if isinstance(star, exp.Star):
            projections += _expand_star(projection, scope)
        else:
            is_alias = isinstance(projection, exp.Alias)
            value = compile_expression(projection.this if is_alias else projection, scope)
            projections.append((_name_of_projection(projection, has_names), value))
        bare += [(len(projections), column) for column in scope.bare]
        scope.bare.clear()
    scope.aggregates_allowed = scope.windows_allowed = False
    if scope.is_derived:
        seen: set[str] = set()
        for name, _ in projections:
            if name.lower() in seen:
                raise Mistake.DUPLICATE_COLUMN(name)
            seen.add(name.lower())
    return projections, bare


def _has_quoted_names(node: exp.Expr) -> bool:
    """Returns whether a clause after the select list may name an expression of it."""
    clauses = (node.args.get(name) for name in ("having", "order"))
    names = (name for clause in clauses if clause for name in clause.find_all(exp.Identifier))
    return any(name.args.get("quoted") for name in names)


def _name_of_projection(projection: exp.Expr, has_name: bool) -> str:
    if isinstance(projection, exp.Column):
        return name_of(projection.this)
    if isinstance(projection, exp.Alias):
        name = name_of(projection.args["alias"])
    elif isinstance(projection, exp.Literal):
        name = projection.name
    else:
        name = projection.sql("mysql") if has_name else ""
    return replace_unnamable(name)


def _expand_star(node: exp.Expr, scope: Scope) -> list[tuple[str, Fragment]]:
    table = name_of(node.args.get("table")) if isinstance(node, exp.Column) else ""
    sources = [source for source in scope.sources if not table or source.alias == table]
    if not sources:
        raise Mistake.UNKNOWN_TABLE(table) if table else Mistake.NO_TABLES()
    found: list[tuple[str, Fragment]] = []
    for source, column in ((s, c) for s in sources for c in s.columns):
        fragment = source.fragments[column.name.lower()]
        if fragment.sql not in scope.group_sql:
            scope.bare.append(BareColumn(fragment.sql, column.name, source))
        found.append((column.name, fragment))
    return found


def _compile_having(
    node: exp.Expr, scope: Scope, projections: list[tuple[str, Fragment]]
) -> list[str]:
    """HAVING sees the select list, the GROUP BY expressions and aggregates, and no other column."""
    having = node.args.get("having")
    if having is None:
        return []
    scope.clause = "having clause"
    scope.aggregates_allowed = True
    scope.select_list = {name.lower(): value for name, value in reversed(projections)}
    condition = compile_condition(having.this, scope)
    scope.select_list = {}
    scope.aggregates_allowed = False
    shown = {
        value.sql
        for name, value in projections
        if value.sql.lower().endswith(f".{quote_name(name)}".lower())
    }
    for column in scope.bare:
        if column.sql not in shown:
            raise Mistake.UNKNOWN_COLUMN(column.name, scope.clause)
    scope.bare.clear()
    return [condition]


def _compile_order(
    node: exp.Expr, scope: Scope, projections: list[tuple[str, Fragment]]
) -> list[str]:
    order = node.args.get("order")
    if order is None:
        return []
    scope.clause = "order clause"
    scope.aggregates_allowed = scope.windows_allowed = True
    scope.bare.clear()
    names = {name.lower(): index for index, (name, _) in reversed(list(enumerate(projections)))}
    terms = []
    for number, ordered in enumerate(order.expressions, start=1):
        sql = order_term(ordered.this, projections, names)
        if sql is None:
            scope.select_list = {
                name.lower(): value
                for name, value in reversed(projections)
                if name.lower() in scope.aliases
            }
            value = compile_expression(ordered.this, scope)
            scope.select_list = {}
            if node.args.get("distinct"):
                _check_distinct_order(value, scope, projections, number)
            # A literal orders nothing; SQLite would read a number in its place as a position.
            sql = collated(rounded(value)) if value.literal is None else "NULL"
        if node.args.get("group"):
            bare = [(number, column) for column in scope.bare]
            _check_full_group_by(node, scope, bare, "ORDER BY clause")
        scope.bare.clear()
        terms.append(sql + direction(ordered))
    scope.aggregates_allowed = scope.windows_allowed = False
    return terms


def _check_distinct_order(
    value: Fragment, scope: Scope, projections: list[tuple[str, Fragment]], number: int
) -> None:
    shown = {projection.sql for _, projection in projections}
    for column in scope.bare if value.sql not in shown else ():
        if column.sql not in shown:
            raise Mistake.DISTINCT_ORDER(number, column.title)


def order_term(
    term: exp.Expr, projections: list[tuple[str, Fragment]], names: dict[str, int]
) -> str | None:
    """Returns a term that is a position or a name of the select list; None for others."""
    if isinstance(term, exp.Literal) and term.name.isdigit() and not term.is_string:
        position = int(term.name) - 1
        if not 0 <= position < len(projections):
            raise Mistake.UNKNOWN_COLUMN(term.name, "order clause")
    elif isinstance(term, exp.Column) and not term.table and name_of(term.this).lower() in names:
        name = name_of(term.this).lower()
        position = names[name]
        if len({value.sql for other, value in projections if other.lower() == name}) > 1:
            raise Mistake.AMBIGUOUS(name, "order clause")
    else:
        return None
    value = projections[position][1]
    if rounded(value) != value:
        return rounded(value).sql
    suffix = " COLLATE NOCASE" if value.type.kind is Kind.TEXT and not value.is_collated else ""
    return f"{position + 1}{suffix}"


def compile_limit(node: exp.Expr) -> str:
    """Returns the LIMIT clause, whose numbers the parser has checked."""
    limit, offset = node.args.get("limit"), node.args.get("offset")
    if limit is None:
        return ""
    parts = [limit.expression, *([offset.expression] if offset else [])]
    numbers = [min(int(part.name), (1 << 63) - 1) for part in parts]
    return f" LIMIT {' OFFSET '.join(map(str, numbers))}"


def _check_full_group_by(
    node: exp.Expr,
    scope: Scope,
    bare: list[tuple[int, BareColumn]],
    clause: str = "SELECT list",
) -> None:
    """ONLY_FULL_GROUP_BY. `bare`: (number of the expression, column).

    Raises: MySQLError (1055, 1140) for a bare column that neither the groups nor WHERE determine.
    """
    is_grouped = node.args.get("group") is not None
    if not bare or not (is_grouped or scope.num_aggregates):
        return
    known = scope.group_sql | _constant_columns(node, scope)
    for number, column in bare:
        if column.sql in known or _is_determined(column, known):
            continue
        if is_grouped:
            raise Mistake.FULL_GROUP_BY(number, clause, column.title)
        raise Mistake.MIXED_GROUP(number, column.title)


def _is_determined(column: BareColumn, known: set[str]) -> bool:
    fragments = column.source.fragments
    return any(
        key and all(fragments[name].sql in known for name in key) for key in column.source.keys
    )


def _constant_columns(node: exp.Expr, scope: Scope) -> set[str]:
    """Returns the columns (as SQL) that a condition `column = constant` of WHERE fixes."""
    where = node.args.get("where")
    if where is None:
        return set()
    found: set[str] = set()
    for part in where.this.walk(prune=lambda n: not isinstance(n, exp.And | exp.Paren)):
        if not isinstance(part, exp.EQ):
            continue
        for column, value in ((part.this, part.expression), (part.expression, part.this)):
            if isinstance(column, exp.Column) and isinstance(value, exp.Literal):
                found.add(scope.find_column(column).sql)
    scope.bare.clear()
    return found
