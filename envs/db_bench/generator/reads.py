"""Questions of generated DB-bench tasks: SELECT statements whose every clause matters."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from agentpeft.envs.db_bench.generator.conditions import (
    Clause,
    join_masks,
    make_where,
    select_rows,
    to_bits,
)
from agentpeft.envs.db_bench.generator.families import Attempt, Draft, family
from agentpeft.envs.db_bench.generator.outputs import (
    Output,
    add_alias,
    column_output,
    make_aggregate,
    make_aggregates,
    make_calculation,
)
from agentpeft.envs.db_bench.generator.tables import (
    Field,
    OrderKeys,
    Selection,
    StoredRow,
    to_literal,
)
from agentpeft.envs.db_bench.skills import (
    ALIAS,
    GROUP_BY,
    HAVING,
    LIMIT,
    ORDER_BY,
    SKILLS,
    WHERE,
    WRITES,
)
from agentpeft.envs.tasks.phrases import enumerate_words
from agentpeft.envs.tasks.skill_generator import NoTaskHereError


@family(skills=[skill for skill in SKILLS if skill not in WRITES])
def select(attempt: Attempt) -> Draft:
    """Returns a question. Raises: NoTaskHereError where some clause would not matter."""
    if "table_alias" in attempt.skills:
        attempt.prefix = f"{attempt.sample.table.name[0]}."
    where = make_where(attempt)
    groups = _pick_groups(attempt)
    outputs = _make_outputs(attempt, groups)
    group, having = _make_group(attempt, groups), Clause()
    start = f"FROM {attempt.from_sql}"
    if attempt.asks_for(HAVING):
        having = _make_having(attempt, f"{start}{where.sql}{group.sql}")
    outputs, alias_words = add_alias(attempt, outputs)
    head = Clause(_select_list(outputs) + start)
    order = _make_order(attempt, outputs, is_grouped=bool(groups))
    is_plain = not any("(" in out.sql for out in outputs)  # rows of the table, without aggregates
    limit = _make_limit(attempt, (head, where, group, having), is_plain)
    clauses = (head, where, group, having, order, limit)
    rows = _verify_rows(attempt, outputs, clauses) if is_plain else _verify(attempt, clauses)
    sentences = [_say_head(attempt, outputs, groups, where), *alias_words]
    sentences += [clause.words for clause in (having, order, limit) if clause.words]
    sql = "".join(clause.sql for clause in clauses)
    if [out.shown for out in outputs] == [column.name for column in attempt.sample.fields]:
        sql = sql.replace(_select_list(outputs), "SELECT * ", 1)
    columns = [out.to_values(v) for out, v in zip(outputs, zip(*rows, strict=True), strict=True)]
    return Draft(
        attempt.sample.own_sql(sql),
        " ".join(sentences),
        frozenset({"select"}).union(*(clause.skills for clause in clauses))
        | attempt.skills.intersection(ALIAS),
        tuple(zip(*columns, strict=True)),
    )


def make_order(
    attempt: Attempt, candidates: Sequence[Output], coarse: Sequence[Output]
) -> tuple[Clause, str]:
    """Returns the ORDER BY that the attempt's skills ask for, and its keys in English.

    The first of two keys is one of `coarse`, which leave ties.
    """
    kind = next((skill for skill in ORDER_BY if skill in attempt.skills), "")
    if not kind and not attempt.asks_for(LIMIT):
        return Clause(), ""
    kind = kind or "order_by_single_column"
    num_keys = 1 if kind == "order_by_single_column" else 2
    firsts = candidates if num_keys == 1 else coarse
    if len(candidates) < num_keys or not firsts:
        raise NoTaskHereError
    is_descending = attempt.rng.choice((False, True))
    has_opposites = kind == "order_by_multiple_columns_different_directions"
    first = attempt.rng.choice(firsts)
    others = [key for key in candidates if key.sql != first.sql]
    keys = [first, *attempt.rng.sample(others, num_keys - 1)]
    terms = [(key, is_descending != (has_opposites and i == 1)) for i, key in enumerate(keys)]
    # Turning round any one of the keys must change the answer, as leaving all of them out must.
    reversals = [
        [*terms[:i], (key, not is_down), *terms[i + 1 :]] for i, (key, is_down) in enumerate(terms)
    ]

    def render(terms: Sequence[tuple[Output, bool]]) -> str:
        parts = [(key.alias or key.sql) + (" DESC" if is_down else "") for key, is_down in terms]
        return f" ORDER BY {', '.join(parts)}"

    def to_order(terms: Sequence[tuple[Output, bool]]) -> OrderKeys:
        return tuple((key.sql.removeprefix(attempt.prefix), is_down) for key, is_down in terms)

    words = [attempt.say("desc" if is_down else "asc", c=key.words) for key, is_down in terms]
    clause = Clause(
        render(terms),
        "",
        ("", *map(render, reversals)),
        frozenset({kind}),
        tuple(key.sql for key in keys),
        order=to_order(terms),
        weaker_orders=((), *map(to_order, reversals)),
    )
    return clause, f"{attempt.say('then')} ".join(words)


def _pick_groups(attempt: Attempt) -> list[Field]:
    is_multiple = "group_by_multiple_columns" in attempt.skills
    if not attempt.asks_for((*GROUP_BY, *HAVING)):
        return []
    return [attempt.pick(attempt.sample.categories) for _ in range(1 + is_multiple)]


def _make_group(attempt: Attempt, groups: Sequence[Field]) -> Clause:
    if not groups:
        return Clause()
    names = [attempt.ref(group) for group in groups]
    fewer = names if len(names) > 1 else []
    skill = "group_by_multiple_columns" if fewer else "group_by_single_column"
    return Clause(
        f" GROUP BY {', '.join(names)}",
        "",
        tuple(f" GROUP BY {name}" for name in ("rowid", *fewer)),
        frozenset({skill}),
    )


def _make_outputs(attempt: Attempt, groups: Sequence[Field]) -> list[Output]:
    if groups:
        chosen = [column_output(attempt, group) for group in groups]
        return chosen + make_aggregates(attempt)
    is_sorted = attempt.asks_for((*ORDER_BY, *LIMIT))
    if not is_sorted and attempt.asks_for(WHERE) and attempt.rng.random() < 0.25:
        return make_aggregates(attempt)
    fields = attempt.sample.fields
    if not attempt.asks_for(ALIAS) and attempt.rng.random() < 0.15:
        return [column_output(attempt, column) for column in fields]
    chosen_fields = attempt.rng.sample(fields, attempt.rng.choice((1, 2, 2, 3)))
    return [column_output(attempt, column) for column in chosen_fields]


def _make_having(attempt: Attempt, rest: str) -> Clause:
    is_multiple = "having_multiple_conditions_with_aggregate" in attempt.skills
    has_calculation = "having_aggregate_calculation" in attempt.skills
    measures = [make_calculation(attempt) if has_calculation else make_aggregate(attempt)]
    if is_multiple:
        measures.append(make_aggregate(attempt))
    leaves = [_compare(attempt, measure, rest) for measure in measures]
    skill = f"having_{'multiple_conditions' if is_multiple else 'single_condition'}_with_aggregate"
    skills = frozenset({skill, *(attempt.skills & {"having_aggregate_calculation"})})
    if not is_multiple:
        sql, words, weaker = leaves[0].sql, leaves[0].words, [""]
        row_mask, weaker_masks = leaves[0].row_mask, leaves[0].weaker_masks
    else:
        attempt.rng.shuffle(leaves)
        operator = attempt.rng.choice(("AND", "OR"))
        sql = f" {operator} ".join(leaf.sql for leaf in leaves)
        words = attempt.say(operator.lower(), a=leaves[0].words, b=leaves[1].words)
        weaker = ["", *(f" HAVING {leaf.sql}" for leaf in leaves)]
        row_mask = join_masks(operator, [leaf.row_mask for leaf in leaves]) or 0
        weaker_masks = (*leaves[0].weaker_masks, *(leaf.row_mask for leaf in leaves))
    said = attempt.say("having", c=words)
    return Clause(
        f" HAVING {sql}",
        said,
        tuple(weaker),
        skills,
        row_mask=row_mask,
        weaker_masks=(0, *weaker_masks),
    )


def _compare(attempt: Attempt, measure: Output, rest: str) -> Clause:
    """Returns a comparison of an aggregate with a value, true for some groups only."""
    found = attempt.sample.query(f"SELECT {measure.sql} {rest}")
    values = [float(value) for (value,) in found]
    steps = list(pairwise(sorted(set(values))))
    if not steps:
        raise NoTaskHereError
    low, high = attempt.rng.choice(steps)
    operator = attempt.rng.choice("<>")
    options = attempt.sample.options
    decimals = range(1 if measure.kind in ("int", 0) else 3)
    places = (0.5,) if options.split is None else (0.5, 0.25, 0.75, 0.375, 0.625)
    tried = [round(low * (1 - p) + high * p, d) for p in places for d in decimals]
    limits = [limit for limit in tried if low < limit < high]
    limits = limits[:1] if options.split is None else limits
    limits = [limit for limit in limits if min(limit - low, high - limit) >= 0.001]
    edge = low if operator == ">" else high
    limits += [edge] if edge == round(edge, 2) else []
    limit = next(filter(options.allows, limits), None)
    if limit is None:
        raise NoTaskHereError
    literal = to_literal(int(limit) if limit == int(limit) else limit)
    words = attempt.say(operator, c=measure.words, v=literal)
    row_mask = to_bits((value > limit) if operator == ">" else (value < limit) for value in values)
    return Clause(
        f"{measure.sql} {operator} {literal}",
        words,
        row_mask=row_mask,
        weaker_masks=((1 << len(values)) - 1,),
    )


def _select_list(outputs: Sequence[Output]) -> str:
    return f"SELECT {', '.join([out.shown for out in outputs])} "


def _make_order(attempt: Attempt, outputs: Sequence[Output], is_grouped: bool) -> Clause:
    if not attempt.asks_for((*ORDER_BY, *LIMIT)):
        return Clause()
    candidates = list(outputs)
    coarse = [out for out in outputs if out.sql == "COUNT(*)" or out.kind == "text"]
    if not is_grouped:
        selected = {out.sql for out in outputs}
        columns = [column_output(attempt, column) for column in attempt.sample.fields]
        candidates += [column for column in columns if column.sql not in selected]
        tied = {attempt.ref(column) for column in attempt.sample.tied_fields}
        coarse = [out for out in candidates if out.sql in tied]
    clause, words = make_order(attempt, candidates, coarse)
    return clause._replace(words=attempt.say("order", keys=words))


def _make_limit(attempt: Attempt, clauses: Sequence[Clause], is_plain: bool) -> Clause:
    has_offset = "limit_and_offset" in attempt.skills
    if not has_offset and "limit_only" not in attempt.skills:
        return Clause()
    where = clauses[1]
    if is_plain:
        total = (where.row_mask if where.sql else attempt.sample.full_mask).bit_count()
    else:
        total = len(attempt.sample.query("".join([clause.sql for clause in clauses])))
    if total < 2 + has_offset:
        raise NoTaskHereError
    if not has_offset:
        num_rows = attempt.rng.randint(1, min(5, total - 1))
        words = attempt.say("limit", n=count_rows(num_rows))
        return limit_clause(num_rows, words)
    offset = attempt.rng.randint(1, min(4, total - 2))
    num_rows = attempt.rng.randint(1, min(5, total - 1 - offset))
    forms = (f" LIMIT {num_rows} OFFSET {offset}", f" LIMIT {offset}, {num_rows}")
    words = attempt.say("offset", n=count_rows(num_rows), m=count_rows(offset))
    weaker = ("", f" LIMIT {num_rows}", f" LIMIT 100 OFFSET {offset}")
    return Clause(
        attempt.rng.choice(forms),
        words,
        weaker,
        frozenset({"limit_and_offset"}),
        cut=slice(offset, offset + num_rows),
        weaker_cuts=(slice(None), slice(num_rows), slice(offset, None)),
    )


def count_rows(num_rows: int) -> str:
    """Returns "row" or "3 rows", to go after "the first"."""
    return "row" if num_rows == 1 else f"{num_rows} rows"


def limit_clause(num_rows: int, words: str) -> Clause:
    """Returns a LIMIT without an offset."""
    return Clause(
        f" LIMIT {num_rows}",
        words,
        ("",),
        frozenset({"limit_only"}),
        cut=slice(num_rows),
        weaker_cuts=(slice(None),),
    )


def _say_head(
    attempt: Attempt, outputs: Sequence[Output], groups: Sequence[Field], where: Clause
) -> str:
    form = "groups" if groups else "totals" if "(" in outputs[0].sql else "rows"
    cols = enumerate_words([f"the {out.words}" for out in outputs])
    names = [out.sql.removeprefix(attempt.prefix) for out in outputs]
    if names == [field.name for field in attempt.sample.fields]:  # as who is asked gives them
        cols = "all columns"
    said = {"groups": "groups_where", "totals": "totals_where", "rows": "where"}[form]
    restriction = f" {attempt.say(said, c=where.words)}" if where.words else ""
    words = " and ".join(group.words for group in groups)
    if len(groups) > 1:
        words = f"combination of {words}"
    return attempt.speaker.capital(
        form, cols=cols, table=attempt.sample.table.name, where=restriction, groups=words
    )


def _verify_rows(
    attempt: Attempt, outputs: Sequence[Output], clauses: Sequence[Clause]
) -> list[StoredRow]:
    """As `_verify`, without a database, for a query without groups and aggregates."""
    if any(clause.is_idle for clause in clauses):
        raise NoTaskHereError
    sample = attempt.sample
    selection, weaker_selections = select_rows(attempt, clauses[1], *clauses[4:])
    names = [out.sql.removeprefix(attempt.prefix) for out in outputs]
    all_rows = list(zip(*[sample.stored(sample.by_name[name]) for name in names], strict=True))
    keys = [sample.stored(sample.by_name[name]) for name, _ in selection.order]
    if keys:
        key_rows = list(zip(*keys, strict=True))
        row_indices = sample.select(Selection(selection.row_mask))
        if len({all_rows[i] + key_rows[i] for i in row_indices}) > len(
            {key_rows[i] for i in row_indices}
        ):
            raise NoTaskHereError
    rows = [all_rows[index] for index in sample.select(selection)]
    others = ([all_rows[index] for index in sample.select(weaker)] for weaker in weaker_selections)
    _check_rows(rows, others, has_order=bool(keys))
    return rows


def _verify(attempt: Attempt, clauses: Sequence[Clause]) -> list[StoredRow]:
    """Returns the query's rows. Raises: NoTaskHereError unless each part of it matters."""
    query = attempt.sample.query
    if any(clause.is_idle for clause in clauses):
        raise NoTaskHereError
    parts = [clause.sql for clause in clauses]
    keys = clauses[4].keys
    if keys:  # first, as most drafts with an order fail here: rows that tie must be alike
        with_keys = parts[0].replace(" FROM ", f", {', '.join(keys)} FROM ")
        found = set(query("".join([with_keys, *parts[1:4]])))
        if len(found) > len({row[-len(keys) :] for row in found}):
            raise NoTaskHereError
    rows = query("".join(parts))
    others = (
        query("".join([*parts[:index], weaker, *parts[index + 1 :]]))
        for index, clause in enumerate(clauses)
        for weaker in clause.weaker
    )
    _check_rows(rows, others, has_order=bool(keys))
    return rows


def _check_rows(rows: list[StoredRow], others: Iterable[list[StoredRow]], has_order: bool) -> None:
    """Raises: NoTaskHereError unless a query's rows differ from those of each weaker query.

    They differ from themselves in reverse order, too, where the order matters.
    """
    if not rows or None in rows[0] or (has_order and len(rows) > 1 and rows == rows[::-1]):
        raise NoTaskHereError
    distinct = set(rows)
    for other in others:
        if len(other) == len(rows) and (
            other == rows
            or (not has_order and set(other) == distinct and Counter(other) == Counter(rows))
        ):
            raise NoTaskHereError
