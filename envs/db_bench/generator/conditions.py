"""WHERE clauses of generated DB-bench tasks, with subqueries, and the effect of each part."""
# ruff: noqa: S608 (names and values of the generator's own)

import operator as operators
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import reduce
from typing import Any, Generic, NamedTuple, TypeVar

from agentpeft.envs.db_bench.backends.protocol import Value
from agentpeft.envs.db_bench.generator.attempt import Attempt
from agentpeft.envs.db_bench.generator.outputs import AGGREGATES
from agentpeft.envs.db_bench.generator.tables import Field, Kind, to_literal
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


_average = AGGREGATES["AVG"]
_JOIN: dict[str, Callable[[int, int], int]] = {"AND": operators.and_, "OR": operators.or_}
_BITS = [1 << index for index in range(64)]
_DATE_PHRASES = {">": "after", "<": "before"}


EffectT_co = TypeVar("EffectT_co", covariant=True)


class Clause(NamedTuple, Generic[EffectT_co]):
    """A piece of SQL and its English (no dataclass: thousands of them are made in a second).

    `effect` is what it does to rows: of a condition a mask with a bit for each row that it keeps.
    `weaker` are the effects of replacements that leave out a part each; the answer must differ with
    every one.
    """

    sql: str
    words: str
    effect: EffectT_co
    weaker: tuple[EffectT_co, ...] = ()
    skills: frozenset[str] = frozenset()


def quote(value: Value) -> str:
    """Returns a value as the instruction writes it: text in quotes, numbers and dates plain."""
    return str(value) if isinstance(value, date) else to_literal(value)


def make_where(attempt: Attempt) -> Clause[int]:
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
        return Clause("", "", attempt.sample.full_mask)
    attempt.rng.shuffle(leaves)
    return _combine(attempt, leaves)


def make_condition(attempt: Attempt, prefix: str | None = None) -> Clause[int]:
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
        return Clause(f"{name} LIKE '{letter}%'", words, row_mask)
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
            return Clause(f"{name} BETWEEN {first} AND {second}", words, row_mask)
        row_mask = to_bits(value in pair for value in attempt.sample.values(column))
        return Clause(f"{name} IN ({first}, {second})", words, row_mask)
    value = attempt.rng.choice(options)
    said = _DATE_PHRASES.get(operator, operator) if column.kind == "date" else operator
    words = attempt.say(said, c=column.words, v=quote(value))
    compare = _COMPARE[operator]
    row_mask = to_bits(compare(other, value) for other in attempt.sample.values(column))
    return Clause(f"{name} {operator} {to_literal(value)}", words, row_mask)


def _between(low: Any, high: Any) -> Callable[[Any], bool]:
    return lambda value: bool(low <= value <= high)


def to_bits(truths: Iterable[bool]) -> int:
    """Returns truth values as the bits of an integer, the first one lowest."""
    return sum(bit for bit, truth in zip(_BITS, truths, strict=False) if truth)


def to_indices(mask: int) -> list[int]:
    """Returns the indices of a mask's bits, in ascending order."""
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


def _join_masks(operator: str, parts: Iterable[int | None]) -> int | None:
    """Joins masks by "AND" or "OR"; None is a condition left out."""
    masks = [part for part in parts if part is not None]
    return reduce(_JOIN[operator], masks) if masks else None


def _combine(attempt: Attempt, leaves: Sequence[Clause[int]]) -> Clause[int]:
    """Joins conditions as the attempt's skills ask, with a weaker form for each part of each."""
    outer, inner = attempt.rng.choice((("AND", "OR"), ("OR", "AND")))
    first, *others = (leaf.sql for leaf in leaves)
    names = dict(zip("abc", (leaf.words for leaf in leaves), strict=False))
    is_nested = "where_nested_conditions" in attempt.skills
    if is_nested:
        skill = "where_nested_conditions"
        sql = f"{first} {outer} ({f' {inner} '.join(others)})"
        words = attempt.say(f"{outer}_{inner}".lower(), **names)
    elif others:
        skill = "where_multiple_conditions"
        sql = f" {outer} ".join((first, *others))
        joined = {"AND": "all", "OR": "any"}[outer] if len(leaves) > 2 else outer.lower()
        words = attempt.say(joined, **names)
    else:
        skill, sql, words = "where_single_condition", first, leaves[0].words

    def join(parts: Sequence[int | None]) -> int:
        if is_nested:
            parts = (parts[0], _join_masks(inner, parts[1:]))
        row_mask = _join_masks(outer, parts)
        return attempt.sample.full_mask if row_mask is None else row_mask

    return Clause(
        f" WHERE {sql}",
        words,
        join([leaf.effect for leaf in leaves]),
        tuple(map(join, _weaken(leaves))),
        frozenset({skill, *(attempt.skills & {"subquery_multiple"})}).union(
            *(leaf.skills for leaf in leaves)
        ),
    )


def _weaken(leaves: Sequence[Clause[int]]) -> Iterable[list[int | None]]:
    """Yields the leaves' masks with something left out (None) or replaced by a weaker form."""
    parts: list[int | None] = [leaf.effect for leaf in leaves]
    yield [None] * len(parts)
    if len(parts) == 3:
        yield [parts[0], None, None]
        yield [None, *parts[1:]]
    for index, leaf in enumerate(leaves):
        for replacement in (None, *leaf.weaker):
            yield [*parts[:index], replacement, *parts[index + 1 :]]


def _make_subqueries(attempt: Attempt) -> list[Clause[int]]:
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


def _plain_subquery(attempt: Attempt) -> Clause[int]:
    kind = attempt.skills & {"subquery_single"}
    if attempt.rng.random() < 0.3:
        column, inner = attempt.pick(attempt.sample.categories), make_condition(attempt, "")
        head = f"{attempt.ref(column)} IN (SELECT {column.name} FROM {attempt.table}"
        words = attempt.say("occurs", c=column.words, d=inner.words)
        skills = kind | {"where_single_condition"}
        values = attempt.sample.stored(column)
        occurring = {values[index] for index in to_indices(inner.effect)}
        row_mask = to_bits(value in occurring for value in values)
        weaker = (attempt.sample.full_mask,)
        return Clause(f"{head} WHERE {inner.sql})", words, row_mask, weaker, skills)
    column = attempt.pick(attempt.sample.numbers)
    function, phrase, operators = attempt.rng.choice(_EXTREMES)
    operator = attempt.rng.choice(operators)
    words = attempt.say(operator, c=column.words, v=attempt.say(phrase, c=column.words))
    query = f"(SELECT {function}({column.name}) FROM {attempt.table})"
    values = attempt.sample.stored(column)
    row_mask = _keep(values, operator, AGGREGATES[function](values))
    return Clause(f"{attempt.ref(column)} {operator} {query}", words, row_mask, skills=kind)


def _keep(values: Sequence[Any], operator: str, limit: Any) -> int:
    """Returns the rows where a comparison with a value holds, as bits."""
    compare = _COMPARE[operator]
    return to_bits(compare(value, limit) for value in values)


def _nested_subquery(attempt: Attempt) -> Clause[int]:
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
    chosen = to_indices(_keep(inner_values, operators[1], _average(inner_values)))
    averaged = [values[index] for index in chosen]
    return Clause(
        f"{start} WHERE {inner.name} {operators[1]} {deepest})",
        words,
        _keep(values, operators[0], _average(averaged)) if averaged else 0,
        (_keep(values, operators[0], _average(values)),),
        frozenset({"subquery_nested", "where_single_condition"}),
    )


def _neither_extreme(attempt: Attempt) -> Clause[int]:
    column = attempt.pick(attempt.sample.numbers)
    ends = [f"(SELECT {end}({column.name}) FROM {attempt.table})" for end in ("MAX", "MIN")]
    values = attempt.sample.stored(column)
    without = [_keep(values, "<>", end(values)) for end in (max, min)]
    return Clause(
        f"{attempt.ref(column)} NOT IN ({', '.join(ends)})",
        attempt.say("neither", c=column.words),
        without[0] & without[1],
        tuple(without),
        frozenset({"subquery_multiple"}),
    )
