"""Random tables for generated DB-bench tasks: thirty domains, large pools of names and values.

The domains are in `data/domains.toml`, the pools of words in `data/words.toml`.

Numbers are multiples of a quarter, so that sums and means are exact in every database; text is
plain ASCII letters and spaces, which every collation sorts alike; there are no NULLs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any, Literal

from agentpeft.envs.db_bench.backends.protocol import Column, Table, Value
from agentpeft.envs.tasks.phrases import invent_word, read_toml
from agentpeft.envs.tasks.skill_generator import GeneratorOptions
from agentpeft.envs.tasks.task import Split, compute_split
from agentpeft.envs.tasks.task_random import TaskRandom

Kind = Literal["name", "category", "int", "decimal", "float", "date"]
StoredRow = tuple[str | float, ...]

_JOINED = {
    "PERSON": ("FIRST", "LAST", "{} {}"),
    "THING": ("COLOR", "NOUN", "{} {}"),
    "TITLE": ("COLOR", "NOUN", "The {} {}"),
    "PLACE": ("COLOR", "NOUN", "{} {} House"),
    "COMPANY": ("LAST", "NOUN", "{} {}"),
    "STREET": ("NOUN", "FIRST", "{} {} Street"),
}
_INVENTED = "INVENTED"
_NEEDS_TWO_NUMBERS = frozenset(
    {"having_aggregate_calculation", "where_nested_conditions", "subquery_nested"}
)
_FIRST_DAY = date(2015, 1, 1).toordinal()
_TEXT_TYPES = ("TEXT", "VARCHAR(50)", "VARCHAR(100)", "VARCHAR(255)")
_TYPES: dict[Kind, tuple[str, ...]] = {
    "name": _TEXT_TYPES,
    "category": _TEXT_TYPES,
    "int": ("INT",),
    "decimal": ("DECIMAL(10,2)",),
    "float": ("FLOAT", "DOUBLE"),
    "date": ("DATE",),
}


@dataclass(frozen=True)
class TableOptions(GeneratorOptions):
    """Limits of generated tasks; None is no limit of its own.

    `max_columns` (3 or more) and `max_rows` (4 or more) of a table; skills that need more columns
    than that get them. `max_text_chars` (3 or more): of a text in gold SQL. `invent`: half of the
    text columns hold made-up words of 3 to 9 letters, and numbers are raised by any from 1 to 99.

    `split`: each text, number, date and table name is for training or for testing, by a hash of its
    value. A task's table name and the literals of its gold SQL are of its split alone. Not held out
    are the counts of LIMIT and OFFSET, columns' names, and what else is in the cells.
    """

    max_columns: int | None = None
    max_rows: int | None = None
    max_text_chars: int | None = None
    _limits = GeneratorOptions._limits | {
        "max_columns": ("c", 3),
        "max_rows": ("r", 4),
        "max_text_chars": ("t", 3),
    }

    def allows(self, value: Value) -> bool:
        """Returns whether gold SQL may have a value, however it is written (5, 5.00; a, A)."""
        limit = self.max_text_chars
        is_long = limit is not None and isinstance(value, str) and len(value) > limit
        return not is_long and self.allows_name(value)

    def allows_name(self, name: Value) -> bool:
        """Returns whether a table may have a name, or a value is of the split."""
        return self.split is None or _split_of_value(name) == self.split


@lru_cache(maxsize=2**16)
def _split_of_value(value: Value) -> Split:
    if isinstance(value, int | float | Decimal):
        return compute_split(repr(float(value)))
    return compute_split(str(value).lower())


@dataclass(frozen=True)
class Field:
    """A column as the generator sees it.

    `pool` has the words of a text column, or is the name of a pool; `bounds` are those of numbers.
    """

    name: str
    kind: Kind
    type: str
    pool: str | tuple[str, ...] = ""
    bounds: tuple[int, int] = (0, 0)

    @cached_property
    def words(self) -> str:
        """The name as words: "hire date"; `num_pages` is "number of pages"."""
        return self.name.replace("num_", "number of ").replace("_", " ")

    @cached_property
    def is_number(self) -> bool:
        """True if it can be summed."""
        return self.kind in ("int", "decimal", "float")

    @cached_property
    def column(self) -> Column:
        """The column of a task's table."""
        return Column(self.name, self.type)


@dataclass(frozen=True)
class Domain:
    """Tables of one kind: their names, and the columns that all or some of them have.

    A column is the fields that it may be, one for each of its types.
    """

    names: list[str]
    leading: list[tuple[Field, ...]]
    others: list[tuple[Field, ...]]


class SampleTable:
    """A random table, with its values by column."""

    def __init__(self, table: Table, fields: tuple[Field, ...], options: TableOptions) -> None:
        self.table = table
        self.fields = fields
        self.options = options
        self.numbers = [field for field in fields if field.is_number]
        self.categories = [field for field in fields if field.kind == "category"]
        self._values = dict(
            zip((f.name for f in fields), zip(*table.rows, strict=True), strict=True)
        )
        self._stored: dict[str, Sequence[str | float]] = {}

    @property
    def full_mask(self) -> int:
        """All rows, as the mask of a condition that keeps them."""
        return (1 << len(self.table.rows)) - 1

    def values(self, field: Field) -> tuple[Value, ...]:
        """Returns a column's values, row by row."""
        return self._values[field.name]

    def distinct(self, field: Field) -> list[Value]:
        """Returns a column's different values in ascending order."""
        return sorted(set(self._values[field.name]))

    def allowed(self, field: Field) -> list[Value]:
        """Returns those of a column's different values that gold SQL may have."""
        return list(filter(self.options.allows, self.distinct(field)))

    @cached_property
    def tied_fields(self) -> list[Field]:
        """The columns with a value that several rows have."""
        num_rows = len(self.table.rows)
        return [field for field in self.fields if len(self.distinct(field)) < num_rows]

    @cached_property
    def stored_rows(self) -> list[StoredRow]:
        """The rows as a database has them."""
        return list(zip(*map(self.stored, self.fields), strict=True))

    def stored(self, field: Field) -> Sequence[str | float]:
        """Returns a column's values as a database has them."""
        values = self._stored.get(field.name)
        if values is None:
            values = self._stored[field.name] = to_stored(field, self._values[field.name])
        return values


def make_sample(rng: TaskRandom, skills: Sequence[str], options: TableOptions) -> SampleTable:
    """Returns a random table of 6 to 14 rows; for several skills 11 to 14, with more categories."""
    is_large = len(skills) > 1
    domain = rng.choice(_DOMAINS)
    columns = domain.leading + rng.sample(domain.others, rng.randint(3, len(domain.others)))
    fields = [column[0] if len(column) == 1 else rng.choice(column) for column in columns]
    if options.invent:
        fields = [_with_invented_words(rng, field) for field in fields]
    rng.shuffle(fields)
    if options.max_columns is not None:
        fields = _fewer(fields, skills, options.max_columns)
    most = min(14, options.max_rows or 14)
    num_rows = rng.randint(min(most, 11 if is_large else 6), most)
    num_categories = rng.randint(4, 6) if is_large else rng.randint(2, 4)
    num_categories = min(num_categories, max(3, most // 2))
    values = [_make_values(rng, field, num_rows, num_categories) for field in fields]
    table = Table(
        _make_table_name(rng, domain.names, options),
        tuple(field.column for field in fields),
        tuple(zip(*values, strict=True)),
    )
    return SampleTable(table, tuple(fields), options)


def make_value(rng: TaskRandom, field: Field) -> Value:
    """Returns a random value that fits a column."""
    return _make_values(rng, field, 1, 1)[0]


def to_literal(value: Value) -> str:
    """Returns a value as SQL."""
    if isinstance(value, str | date):
        return f"'{value}'"
    return str(value)


def to_stored(field: Field, values: Sequence[Value]) -> Sequence[str | float]:
    """Returns values as a database compares them: numbers as floats, all else as text."""
    if field.is_number:
        return list(map(float, values))  # type: ignore[arg-type]
    return list(map(str, values))


def _make_values(
    rng: TaskRandom, field: Field, num_rows: int, num_categories: int
) -> Sequence[Value]:
    if field.kind == "name":
        return _pick_texts(rng, field.pool, num_rows)
    if field.kind == "category":
        chosen = _pick_texts(rng, field.pool, num_categories)
        return [chosen[index] for index in rng.many_below(len(chosen), num_rows)]
    pool = _make_scalars(rng, field, num_rows)
    if rng.random() < 0.5:
        pool = pool[: max(2, num_rows // 2)]
    if len(pool) < num_rows:
        return [pool[index] for index in rng.many_below(len(pool), num_rows)]
    return pool[:num_rows]


def _make_scalars(rng: TaskRandom, field: Field, count: int) -> list[Value]:
    if field.kind == "date":
        return [date.fromordinal(_FIRST_DAY + day) for day in rng.many_below(4000, count)]
    low, high = field.bounds
    if field.kind == "int":
        step = 1 if high < 500 else 10 if high < 2000 else 50
        steps = rng.many_below((high - low) // step + 1, count)
        return [low + step * number for number in steps]
    quarters = [4 * low + number for number in rng.many_below(4 * (high - low) + 1, count)]
    if field.kind == "decimal":
        return [Decimal(number * 25).scaleb(-2) for number in quarters]
    return [number / 4 for number in quarters]


def _pick_texts(rng: TaskRandom, pool: str | tuple[str, ...], num_texts: int) -> list[str]:
    if pool == _INVENTED:
        return [invent_word(rng, 3).capitalize() for _ in range(num_texts)]
    if isinstance(pool, str) and pool in _JOINED:
        first, second, form = _JOINED[pool]
        firsts = rng.sample(_POOLS[first], num_texts)
        return [form.format(word, rng.choice(_POOLS[second])) for word in firsts]
    options = _POOLS[pool] if isinstance(pool, str) else pool
    return rng.sample(options, min(num_texts, len(options)))


def _make_table_name(rng: TaskRandom, names: list[str], options: TableOptions) -> str:
    prefix = f"{rng.choice(_POOLS['PREFIX'])}_" if rng.random() < 0.4 else ""
    suffix = f"_{rng.choice(_POOLS['SUFFIX'])}" if rng.random() < 0.4 else ""
    name = f"{prefix}{rng.choice(names)}{suffix}"
    return name if options.allows_name(name) else _make_table_name(rng, names, options)


def _fewer(fields: list[Field], skills: Sequence[str], max_columns: int) -> list[Field]:
    """Returns at most `max_columns`, and those that the skills need: categories, then numbers."""
    num_categories = 1 + ("group_by_multiple_columns" in skills)
    num_numbers = 1 + (not _NEEDS_TWO_NUMBERS.isdisjoint(skills))
    first = [field for field in fields if field.kind == "category"][:num_categories]
    first += [field for field in fields if field.is_number][:num_numbers]
    chosen = sorted(fields, key=lambda field: field not in first)[: max(max_columns, len(first))]
    return [field for field in fields if field in chosen]


def _with_invented_words(rng: TaskRandom, field: Field) -> Field:
    is_invented = field.kind in ("name", "category") and rng.random() < 0.5
    return replace(field, pool=_INVENTED) if is_invented else field


def _read_domain(domain: dict[str, Any]) -> Domain:
    columns = [_read_column(name, content) for name, content in domain["columns"].items()]
    leading = [column for column in columns if column[0].kind in ("name", "category")][:3]
    others = [column for column in columns if column not in leading]
    return Domain(domain["names"], leading, others)


def _read_column(name: str, content: dict[Kind, Any]) -> tuple[Field, ...]:
    """Returns the fields that a column may be; `content` is such as `{"int": [1, 9]}`."""
    [(kind, values)] = content.items()
    if kind in ("name", "category"):
        pool = values if isinstance(values, str) else tuple(values)
        return tuple(Field(name, kind, type_name, pool=pool) for type_name in _TYPES[kind])
    bounds = (0, 0) if kind == "date" else tuple(values)
    return tuple(Field(name, kind, type_name, bounds=bounds) for type_name in _TYPES[kind])


_DOMAINS = [_read_domain(domain) for domain in read_toml(__file__, "data/domains.toml")["domains"]]
_POOLS: dict[str, list[str]] = read_toml(__file__, "data/words.toml")
