"""Questions of generated DB-bench tasks: SELECT statements whose every clause matters."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from agentpeft.envs.db_bench.generator.attempt import Attempt
from agentpeft.envs.db_bench.generator.conditions import Clause, make_where, to_indices
from agentpeft.envs.db_bench.generator.outputs import (
    Group,
    Output,
    StoredValue,
    add_alias,
    column_output,
    make_aggregate,
    make_aggregates,
    make_calculation,
)
from agentpeft.envs.db_bench.generator.tables import Field, to_literal
from agentpeft.envs.db_bench.skills import (
    ALIAS,
    GROUP_BY,
    HAVING,
    LIMIT,
    ORDER_BY,
    WHERE,
)
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.tasks.phrases import enumerate_words
from agentpeft.envs.tasks.skill_generator import NoTaskHereError

OrderKeys = tuple[tuple[Output, bool], ...]
"""The keys of an ORDER BY, each with whether it is DESC."""
_Rows = list[tuple[StoredValue, ...]]


class Selection(NamedTuple):
    """What the clauses of a SELECT do, to be replaced one by one by their weaker forms.

    `group_by` has the keys' columns. None makes each row a group of its own, as in a query without
    aggregates; no keys make all rows one group.
    """

    row_mask: int
    group_by: tuple[Sequence[Any], ...] | None = None
    having: Callable[[Group], bool] | None = None
    order: OrderKeys = ()
    cut: slice = slice(None)

    def select_groups(self) -> list[Group]:
        """Returns the groups in order."""
        indices = to_indices(self.row_mask)
        if self.group_by is None:
            groups = [[index] for index in indices]
        elif not self.group_by:
            groups = [indices]
        else:
            groups = self._make_groups(indices, self.group_by)
        if self.having is not None:
            groups = list(filter(self.having, groups))
        # Sorting is stable: by the last key first, each earlier key keeps the order within ties.
        for output, is_descending in reversed(self.order):
            groups.sort(key=output.get_sort_key, reverse=is_descending)
        return groups[self.cut]

    def _make_groups(self, indices: Sequence[int], columns: Sequence[Sequence[Any]]) -> list[Group]:
        """Returns groups by their keys: that decides ties, and so which drafts become tasks.

        As in SQLite the keys are descending where as many order keys are.
        """
        by_key: dict[tuple[Any, ...], Group] = {}
        for index in indices:
            by_key.setdefault(tuple([column[index] for column in columns]), []).append(index)
        groups = list(by_key.values())
        has_directions = len(self.order) == len(columns)
        for number, column in reversed(list(enumerate(columns))):
            is_descending = has_directions and self.order[number][1]
            groups.sort(key=lambda group: column[group[0]], reverse=is_descending)
        return groups


def select(attempt: Attempt) -> DBBenchTask:
    """Returns a question. Raises: NoTaskHereError where some clause would not matter."""
    if "table_alias" in attempt.skills:
        attempt.prefix = f"{attempt.sample.table.name[0]}."
    where = make_where(attempt)
    groups = _pick_groups(attempt)
    outputs = _make_outputs(attempt, groups)
    group = _make_group(attempt, groups, is_plain=not any("(" in out.sql for out in outputs))
    query = Selection(where.effect, group.effect)
    having = _make_having(attempt, query.select_groups())
    outputs, alias_words = add_alias(attempt, outputs)
    order = _make_order(attempt, outputs, is_grouped=bool(groups))
    query = query._replace(having=having.effect)
    limit = _make_limit(attempt, len(query.select_groups()))
    query = query._replace(order=order.effect, cut=limit.effect)
    clauses = (where, group, having, order, limit)
    rows = _verify(outputs, query, clauses)
    sentences = [_say_head(attempt, outputs, groups, where), *alias_words]
    sentences += [clause.words for clause in (having, order, limit) if clause.words]
    shown = [out.shown for out in outputs]
    is_all = shown == [column.name for column in attempt.sample.fields]
    head = f"SELECT {'*' if is_all else ', '.join(shown)} FROM {attempt.from_sql}"  # noqa: S608
    columns = [out.to_values(v) for out, v in zip(outputs, zip(*rows, strict=True), strict=True)]
    return attempt.make_task(
        "".join([head, *(clause.sql for clause in clauses)]),
        " ".join(sentences),
        frozenset({"select"}).union(*(clause.skills for clause in clauses))
        | attempt.skills.intersection(ALIAS),
        tuple(zip(*columns, strict=True)),
    )


def make_order(
    attempt: Attempt, candidates: Sequence[Output], coarse: Sequence[Output]
) -> tuple[Clause[OrderKeys], str]:
    """Returns the ORDER BY that the attempt's skills ask for, and its keys in English.

    The first of two keys is one of `coarse`, which leave ties.
    """
    kind = next((skill for skill in ORDER_BY if skill in attempt.skills), "order_by_single_column")
    num_keys = 1 if kind == "order_by_single_column" else 2
    firsts = candidates if num_keys == 1 else coarse
    if len(candidates) < num_keys or not firsts:
        raise NoTaskHereError
    is_descending = attempt.rng.choice((False, True))
    has_opposites = kind == "order_by_multiple_columns_different_directions"
    first = attempt.rng.choice(firsts)
    others = [key for key in candidates if key.sql != first.sql]
    keys = [first, *attempt.rng.sample(others, num_keys - 1)]
    terms = tuple((key, is_descending != (has_opposites and i == 1)) for i, key in enumerate(keys))
    # Turning round any one of the keys must change the answer, as leaving all of them out must.
    reversals = [
        (*terms[:i], (key, not is_down), *terms[i + 1 :]) for i, (key, is_down) in enumerate(terms)
    ]
    names = [(key.alias or key.sql) + (" DESC" if is_down else "") for key, is_down in terms]
    words = [attempt.say("desc" if is_down else "asc", c=key.words) for key, is_down in terms]
    clause = Clause(f" ORDER BY {', '.join(names)}", "", terms, ((), *reversals), frozenset({kind}))
    return clause, f"{attempt.say('then')} ".join(words)


def _pick_groups(attempt: Attempt) -> list[Field]:
    is_multiple = "group_by_multiple_columns" in attempt.skills
    if not attempt.asks_for((*GROUP_BY, *HAVING)):
        return []
    return [attempt.pick(attempt.sample.categories) for _ in range(1 + is_multiple)]


def _make_group(
    attempt: Attempt, groups: Sequence[Field], is_plain: bool
) -> Clause[tuple[Sequence[Any], ...] | None]:
    if not groups:
        return Clause("", "", None if is_plain else ())
    sql = f" GROUP BY {', '.join([attempt.ref(group) for group in groups])}"
    columns = [[str(text).lower() for text in attempt.sample.stored(group)] for group in groups]
    row_numbers = range(len(columns[0]))
    fewer = [(column,) for column in columns] if len(groups) > 1 else []
    skill = "group_by_multiple_columns" if fewer else "group_by_single_column"
    return Clause(sql, "", tuple(columns), ((row_numbers,), *fewer), frozenset({skill}))


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


def _make_having(
    attempt: Attempt, groups: Sequence[Group]
) -> Clause[Callable[[Group], bool] | None]:
    if not attempt.asks_for(HAVING):
        return Clause("", "", None)
    is_multiple = "having_multiple_conditions_with_aggregate" in attempt.skills
    has_calculation = "having_aggregate_calculation" in attempt.skills
    measures = [make_calculation(attempt) if has_calculation else make_aggregate(attempt)]
    if is_multiple:
        measures.append(make_aggregate(attempt))
    leaves = [_compare(attempt, measure, groups) for measure in measures]
    skill = f"having_{'multiple_conditions' if is_multiple else 'single_condition'}_with_aggregate"
    skills = frozenset({skill, *(attempt.skills & {"having_aggregate_calculation"})})
    if not is_multiple:
        [leaf] = leaves
        words = attempt.say("having", c=leaf.words)
        return Clause(f" HAVING {leaf.sql}", words, leaf.effect, (None,), skills)
    attempt.rng.shuffle(leaves)
    operator = attempt.rng.choice(("AND", "OR"))
    join = all if operator == "AND" else any
    first, second = leaves
    words = attempt.say(operator.lower(), a=first.words, b=second.words)
    return Clause(
        f" HAVING {first.sql} {operator} {second.sql}",
        attempt.say("having", c=words),
        lambda group: join((first.effect(group), second.effect(group))),
        (None, first.effect, second.effect),
        skills,
    )


def _compare(
    attempt: Attempt, measure: Output, groups: Sequence[Group]
) -> Clause[Callable[[Group], bool]]:
    """Returns a comparison of an aggregate with a value, true for some groups only."""
    compute: Callable[[Group], Any] = measure.compute
    steps = list(pairwise(sorted({float(compute(group)) for group in groups})))
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
    return Clause(
        f"{measure.sql} {operator} {literal}",
        words,
        (lambda group: bool(compute(group) > limit))
        if operator == ">"
        else (lambda group: bool(compute(group) < limit)),
    )


def _make_order(attempt: Attempt, outputs: Sequence[Output], is_grouped: bool) -> Clause[OrderKeys]:
    if not attempt.asks_for((*ORDER_BY, *LIMIT)):
        return Clause("", "", ())
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


def _make_limit(attempt: Attempt, total: int) -> Clause[slice]:
    has_offset = "limit_and_offset" in attempt.skills
    if not has_offset and "limit_only" not in attempt.skills:
        return Clause("", "", slice(None))
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
    return Clause(
        attempt.rng.choice(forms),
        words,
        slice(offset, offset + num_rows),
        (slice(None), slice(num_rows), slice(offset, None)),
        frozenset({"limit_and_offset"}),
    )


def count_rows(num_rows: int) -> str:
    """Returns "row" or "3 rows", to go after "the first"."""
    return "row" if num_rows == 1 else f"{num_rows} rows"


def limit_clause(num_rows: int, words: str) -> Clause[slice]:
    """Returns a LIMIT without an offset."""
    return Clause(
        f" LIMIT {num_rows}",
        words,
        slice(num_rows),
        (slice(None),),
        frozenset({"limit_only"}),
    )


def _say_head(
    attempt: Attempt, outputs: Sequence[Output], groups: Sequence[Field], where: Clause[int]
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


def list_weaker(query: Selection, clauses: Sequence[Clause[Any]]) -> Iterable[Selection]:
    """Yields the query with each weaker form of each clause; clauses are in `Selection`'s order."""
    for name, clause in zip(Selection._fields, clauses, strict=True):
        for effect in clause.weaker:
            yield query._replace(**{name: effect})


def _verify(outputs: Sequence[Output], query: Selection, clauses: Sequence[Clause[Any]]) -> _Rows:
    """Returns the query's rows. Raises: NoTaskHereError unless each part of it matters."""
    if query.row_mask in clauses[0].weaker:
        raise NoTaskHereError
    keys = [output for output, _ in query.order]
    if keys:  # first, as most drafts with an order fail here: rows that tie must be alike
        groups = query._replace(order=(), cut=slice(None)).select_groups()
        sort_keys = _compute_rows(keys, groups)
        if len({*zip(_compute_rows(outputs, groups), sort_keys, strict=True)}) > len({*sort_keys}):
            raise NoTaskHereError
    rows = _compute_rows(outputs, query.select_groups())
    weaker = (
        _compute_rows(outputs, other.select_groups()) for other in list_weaker(query, clauses)
    )
    _check_rows(rows, weaker, has_order=bool(keys))
    return rows


def _compute_rows(outputs: Sequence[Output], groups: Sequence[Group]) -> _Rows:
    return list(zip(*[[*map(output.compute, groups)] for output in outputs], strict=True))


def _check_rows(rows: _Rows, others: Iterable[_Rows], has_order: bool) -> None:
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
