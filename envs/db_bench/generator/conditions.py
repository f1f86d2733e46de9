"""WHERE clauses of generated DB-bench tasks, with subqueries, and the effect of each part."""
# ruff: noqa: S608 (names and values of the generator's own)

import operator as operators
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import reduce
from typing import Any, NamedTuple, TypeVar

from agentpeft.envs.db_bench.backends.protocol import Value
from agentpeft.envs.db_bench.generator.families import Attempt
from agentpeft.envs.db_bench.generator.tables import Field, Kind, OrderKeys, Selection, to_literal
from agentpeft.envs.db_bench.skills import GROUP_BY, LIMIT
from agentpeft.envs.tasks.skill_generator import NoTaskHereError

_OPERATORS: dict[Kind, tuple[str, ...]] = {
    "name": ("starts", "starts", "="),
    "category": ("=", "=", "<>", "in"),
    "int": (">", "<", ">=", "<=", "between", "="),
    "decimal": (">", "<", ">=", "<=", "between"),
    "float": (">", "<", ">=", "<=", "between"),
    "date": (">", "<", "between"),
}
_EXTREMES = (
    ("AVG", "average_all", "><"),
    ("AVG", "average_all", "><"),
    ("MAX", "highest_all", "=<"),
    ("MIN", "lowest_all", "=>"),
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": operators.gt,
    "<": operators.lt,
    ">=": operators.ge,
    "<=": operators.le,
    "=": operators.eq,
    "<>": operators.ne,
}


def _average(values: Sequence[Any]) -> float:
    return float(sum(values) / len(values))


_AGGREGATE: dict[str, Callable[[Sequence[Any]], Any]] = {"AVG": _average, "MAX": max, "MIN": min}
_JOIN: dict[str, Callable[[int, int], int]] = {"AND": operators.and_, "OR": operators.or_}
_BITS = [1 << index for index in range(64)]
_DATE_PHRASES = {">": "after", "<": "before"}


PartT = TypeVar("PartT")


class Clause(NamedTuple):
    """A piece of SQL and its English (no dataclass: thousands of them are made in a second).

    `weaker` are replacements that leave out a part each; the answer must differ with every one.
    `keys` are the expressions of an ORDER BY. `row_mask` has a bit for each row (in a HAVING, each
    group) that a condition keeps, and `weaker_masks` are those of its replacements: where they are
    equal, `is_idle`, the database need not be asked. `order` and `cut` are what an ORDER BY and a
    LIMIT do to rows, `weaker_orders` and `weaker_cuts` what their replacements do.
    """

    sql: str = ""
    words: str = ""
    weaker: tuple[str, ...] = ()
    skills: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()
    row_mask: int = 0
    weaker_masks: tuple[int, ...] = ()
    order: OrderKeys = ()
    weaker_orders: tuple[OrderKeys, ...] = ()
    cut: slice = slice(None)
    weaker_cuts: tuple[slice, ...] = ()

    @property
    def is_idle(self) -> bool:
        """True if some part of the condition is known to change nothing."""
        return self.row_mask in self.weaker_masks


def select_rows(
    attempt: Attempt, where: Clause, order: Clause, limit: Clause
) -> tuple[Selection, list[Selection]]:
    """Returns the rows that three clauses select, and those that their weaker forms select."""
    row_mask = where.row_mask if where.sql else attempt.sample.full_mask
    weaker = [Selection(bits, order.order, limit.cut) for bits in where.weaker_masks]
    weaker += [Selection(row_mask, keys, limit.cut) for keys in order.weaker_orders]
    weaker += [Selection(row_mask, order.order, cut) for cut in limit.weaker_cuts]
    return Selection(row_mask, order.order, limit.cut), weaker


def quote(value: Value) -> str:
    """Returns a value as the instruction writes it: text in quotes, numbers and dates plain."""
    return str(value) if isinstance(value, date) else to_literal(value)


def make_where(attempt: Attempt) -> Clause:
    """Returns the WHERE that the attempt's skills ask for; empty if they ask for none."""
    skills = attempt.skills
    leaves = _make_subqueries(attempt)
    num_leaves = len(leaves)
    if "where_nested_conditions" in skills:
        num_leaves = 3
    elif "where_multiple_conditions" in skills:
        num_leaves = max(num_leaves, attempt.rng.choice((2, 2, 3)))
    elif "where_single_condition" in skills or "delete" in skills:
        num_leaves = 1
    leaves += [make_condition(attempt) for _ in range(num_leaves - len(leaves))]
    if not leaves:
        return Clause()
    attempt.rng.shuffle(leaves)
    return _combine(attempt, leaves)


def make_condition(attempt: Attempt, prefix: str | None = None) -> Clause:
    """Returns one comparison of a column with one of its values; `prefix` None: the attempt's."""
    fields: Iterable[Field] = attempt.sample.fields
    if attempt.asks_for((*GROUP_BY, *LIMIT)):
        fields = [column for column in fields if column.kind != "name"]
    column = attempt.pick(fields)
    operator = attempt.rng.choice(_OPERATORS[column.kind])
    name = (attempt.prefix if prefix is None else prefix) + column.name
    if operator == "starts":
        letters = [str(text)[0] for text in attempt.sample.distinct(column)]
        letters = [letter for letter in letters if attempt.sample.options.allows(f"{letter}%")]
        if not letters:
            raise NoTaskHereError
        letter = attempt.rng.choice(letters)
        words = attempt.say("starts", c=column.words, v=f"'{letter}'")
        row_mask = to_bits(str(text)[0] == letter for text in attempt.sample.values(column))
        return Clause(f"{name} LIKE '{letter}%'", words, row_mask=row_mask)
    values = attempt.sample.distinct(column)
    options = attempt.sample.allowed(column)
    is_pair = operator in ("between", "in")
    if len(options) < 1 + is_pair or len(values) < 2:
        raise NoTaskHereError
    if is_pair:
        low, high = sorted(attempt.rng.sample(range(len(options)), 2))
        pair = options[low], options[high]
        words = attempt.say(operator, c=column.words, v=quote(pair[0]), w=quote(pair[1]))
        first, second = map(to_literal, pair)
        if operator == "between":
            row_mask = to_bits(map(_between(*pair), attempt.sample.values(column)))
            return Clause(f"{name} BETWEEN {first} AND {second}", words, row_mask=row_mask)
        row_mask = to_bits(value in pair for value in attempt.sample.values(column))
        return Clause(f"{name} IN ({first}, {second})", words, row_mask=row_mask)
    value = attempt.rng.choice(options)
    said = _DATE_PHRASES.get(operator, operator) if column.kind == "date" else operator
    words = attempt.say(said, c=column.words, v=quote(value))
    compare = _COMPARE[operator]
    row_mask = to_bits(compare(other, value) for other in attempt.sample.values(column))
    return Clause(f"{name} {operator} {to_literal(value)}", words, row_mask=row_mask)


def _between(low: Any, high: Any) -> Callable[[Any], bool]:
    return lambda value: bool(low <= value <= high)


def to_bits(truths: Iterable[bool]) -> int:
    """Returns truth values as the bits of an integer, the first one lowest."""
    return sum(bit for bit, truth in zip(_BITS, truths, strict=False) if truth)


def join_masks(operator: str, parts: Iterable[int | None]) -> int | None:
    """Joins masks by "AND" or "OR"; None is a condition left out."""
    there = [part for part in parts if part is not None]
    return reduce(_JOIN[operator], there) if there else None


def _combine(attempt: Attempt, leaves: Sequence[Clause]) -> Clause:
    """Joins conditions as the attempt's skills ask, with a weaker form for each part of each."""
    outer, inner = attempt.rng.choice((("AND", "OR"), ("OR", "AND")))
    is_nested = "where_nested_conditions" in attempt.skills

    def render(parts: Sequence[str]) -> str:
        if not is_nested:
            return _join(outer, parts)
        group = _join(inner, parts[1:])
        return _join(outer, (parts[0], f"({group})" if all(parts[1:]) else group))

    def keep(parts: Sequence[int | None]) -> int:
        row_mask = join_masks(
            outer, parts if not is_nested else (parts[0], join_masks(inner, parts[1:]))
        )
        return attempt.sample.full_mask if row_mask is None else row_mask

    names = dict(zip("abc", (leaf.words for leaf in leaves), strict=False))
    if is_nested:
        words, own_skill = (
            attempt.say(f"{outer}_{inner}".lower(), **names),
            "where_nested_conditions",
        )
    elif len(leaves) > 1:
        joined = {"AND": "all", "OR": "any"}[outer] if len(leaves) > 2 else outer.lower()
        words, own_skill = attempt.say(joined, **names), "where_multiple_conditions"
    else:
        words, own_skill = leaves[0].words, "where_single_condition"
    weaker = list(_weaken("", [(leaf.sql, leaf.weaker) for leaf in leaves]))
    weaker_masks = _weaken(None, [(leaf.row_mask, leaf.weaker_masks) for leaf in leaves])
    return Clause(
        f" WHERE {render([leaf.sql for leaf in leaves])}",
        words,
        tuple(f" WHERE {text}" if text else "" for text in map(render, weaker)),
        frozenset({own_skill, *(attempt.skills & {"subquery_multiple"})}).union(
            *(leaf.skills for leaf in leaves)
        ),
        row_mask=keep([leaf.row_mask for leaf in leaves]),
        weaker_masks=tuple(map(keep, weaker_masks)),
    )


def _join(operator: str, parts: Sequence[str]) -> str:
    return f" {operator} ".join(filter(None, parts))


def _weaken(none: PartT, leaves: Sequence[tuple[PartT, Sequence[PartT]]]) -> Iterable[list[PartT]]:
    """Yields the leaves with something left out (`none`) or replaced by a weaker form."""
    parts = [leaf for leaf, _ in leaves]
    yield [none] * len(parts)
    if len(parts) == 3:
        yield [parts[0], none, none]
        yield [none, *parts[1:]]
    for index, (_, weaker) in enumerate(leaves):
        for replacement in (none, *weaker):
            yield [*parts[:index], replacement, *parts[index + 1 :]]


def _make_subqueries(attempt: Attempt) -> list[Clause]:
    skills = attempt.skills
    is_nested, is_multiple = "subquery_nested" in skills, "subquery_multiple" in skills
    if is_multiple and "where_single_condition" in skills and not is_nested:
        return [_neither_extreme(attempt)]
    made = [_nested_subquery(attempt)] if is_nested else []
    if is_multiple or "subquery_single" in skills:
        made.append(_plain_subquery(attempt))
    if is_multiple and not is_nested:
        made.append(_plain_subquery(attempt))
    return made


def _plain_subquery(attempt: Attempt) -> Clause:
    kind = attempt.skills & {"subquery_single"}
    if attempt.rng.random() < 0.3:
        column, inner = attempt.pick(attempt.sample.categories), make_condition(attempt, "")
        head = f"{attempt.ref(column)} IN (SELECT {column.name} FROM {attempt.table}"
        words = attempt.say("occurs", c=column.words, d=inner.words)
        skills = kind | {"where_single_condition"}
        values = attempt.sample.stored(column)
        occurring = {values[index] for index in attempt.sample.select(Selection(inner.row_mask))}
        row_mask = to_bits(value in occurring for value in values)
        full_mask = (attempt.sample.full_mask,)
        return Clause(
            f"{head} WHERE {inner.sql})", words, (f"{head})",), skills, (), row_mask, full_mask
        )
    column = attempt.pick(attempt.sample.numbers)
    function, phrase, operators = attempt.rng.choice(_EXTREMES)
    operator = attempt.rng.choice(operators)
    words = attempt.say(operator, c=column.words, v=attempt.say(phrase, c=column.words))
    query = f"(SELECT {function}({column.name}) FROM {attempt.table})"
    values = attempt.sample.stored(column)
    row_mask = _keep(values, operator, _AGGREGATE[function](values))
    return Clause(f"{attempt.ref(column)} {operator} {query}", words, (), kind, row_mask=row_mask)


def _keep(values: Sequence[Any], operator: str, limit: Any) -> int:
    """Returns the rows where a comparison with a value holds, as bits."""
    compare = _COMPARE[operator]
    return to_bits(compare(value, limit) for value in values)


def _nested_subquery(attempt: Attempt) -> Clause:
    outer = attempt.pick(attempt.sample.numbers)
    inner = attempt.pick(c for c in attempt.sample.numbers if c != outer)
    operators = [attempt.rng.choice("<>") for _ in range(2)]
    average = attempt.say("average_all", c=inner.words)
    inner_words = attempt.say(operators[1], c=inner.words, v=average)
    some = attempt.say("average_some", c=outer.words, d=inner_words)
    start = f"{attempt.ref(outer)} {operators[0]} (SELECT AVG({outer.name}) FROM {attempt.table}"
    deepest = f"(SELECT AVG({inner.name}) FROM {attempt.table})"
    words = attempt.say(operators[0], c=outer.words, v=some)
    values, inner_values = attempt.sample.stored(outer), attempt.sample.stored(inner)
    chosen = Selection(_keep(inner_values, operators[1], _average(inner_values)))
    averaged = [values[index] for index in attempt.sample.select(chosen)]
    return Clause(
        f"{start} WHERE {inner.name} {operators[1]} {deepest})",
        words,
        (f"{start})",),
        frozenset({"subquery_nested", "where_single_condition"}),
        row_mask=_keep(values, operators[0], _average(averaged)) if averaged else 0,
        weaker_masks=(_keep(values, operators[0], _average(values)),),
    )


def _neither_extreme(attempt: Attempt) -> Clause:
    column = attempt.pick(attempt.sample.numbers)
    ends = [f"(SELECT {end}({column.name}) FROM {attempt.table})" for end in ("MAX", "MIN")]
    values = attempt.sample.stored(column)
    without = [_keep(values, "<>", end(values)) for end in (max, min)]
    return Clause(
        f"{attempt.ref(column)} NOT IN ({', '.join(ends)})",
        attempt.say("neither", c=column.words),
        tuple(f"{attempt.ref(column)} <> {end}" for end in ends),
        frozenset({"subquery_multiple"}),
        row_mask=without[0] & without[1],
        weaker_masks=tuple(without),
    )
