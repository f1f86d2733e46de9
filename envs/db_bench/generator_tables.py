"""Random tables for generated DB-bench tasks: thirty domains, large pools of names and values.

`generator_domains.txt` has a domain a line: table names, "|", columns. A mark says what a column
holds, and its range or pool follows: `=` a name of its own, `@` a category, `#` INT, `$` DECIMAL,
`~` FLOAT or DOUBLE, `!` DATE. `generator_names.txt` has the pools.

Numbers are multiples of a quarter, so that sums and means are exact in every database; text is
plain ASCII letters and spaces, which every collation sorts alike; there are no NULLs.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Literal

from agentpeft.envs.db_bench.database import Column, Table, Value
from agentpeft.envs.db_bench.table_options import TableOptions

Kind = Literal["name", "category", "int", "decimal", "float", "date"]

_JOINED = {
    "PERSON": ("FIRST", "LAST", "{} {}"),
    "THING": ("COLOR", "NOUN", "{} {}"),
    "TITLE": ("COLOR", "NOUN", "The {} {}"),
    "PLACE": ("COLOR", "NOUN", "{} {} House"),
    "COMPANY": ("LAST", "NOUN", "{} {}"),
    "STREET": ("NOUN", "FIRST", "{} {} Street"),
}
_INVENTED = "INVENTED"
_LETTERS = ("bcdfghjklmnprstvwxyz", "aeiou")
_FIRST_DAY = date(2015, 1, 1)


@dataclass(frozen=True)
class Field:
    """A column as the generator sees it; `spec` is its pool or range."""

    name: str
    kind: Kind
    spec: str
    type: str

    @property
    def words(self) -> str:
        """The name as words: "hire date"; `num_pages` is "number of pages"."""
        return self.name.replace("num_", "number of ").replace("_", " ")

    @property
    def is_number(self) -> bool:
        """Whether it can be summed."""
        return self.kind in ("int", "decimal", "float")


@dataclass(frozen=True)
class Sample:
    """A random table, and a SQLite connection that holds it for checking gold SQL."""

    table: Table
    fields: tuple[Field, ...]
    connection: sqlite3.Connection
    options: TableOptions

    def distinct(self, field: Field) -> list[Value]:
        """Returns a column's different values in ascending order."""
        index = self.fields.index(field)
        return sorted({row[index] for row in self.table.rows})  # type: ignore[type-var]

    @property
    def tied_fields(self) -> list[Field]:
        """The columns with a value that several rows have."""
        num_rows = len(self.table.rows)
        return [field for field in self.fields if len(self.distinct(field)) < num_rows]

    @property
    def numbers(self) -> list[Field]:
        """The columns that can be summed."""
        return [field for field in self.fields if field.is_number]

    def of_kind(self, kind: Kind) -> list[Field]:
        """Returns the columns of a kind."""
        return [field for field in self.fields if field.kind == kind]


def make_sample(rng: Random, skills: Sequence[str], options: TableOptions) -> Sample:
    """Returns a random table of 6 to 14 rows, or for several skills 11 to 14 of more categories."""
    is_large = len(skills) > 1
    names, candidates = rng.choice(_DOMAINS)
    fields = [field for field in candidates if field.kind in ("name", "category")][:3]
    others = [field for field in candidates if field not in fields]
    fields += rng.sample(others, rng.randint(3, len(others)))
    fields = [_with_type(rng, field) for field in fields]
    if options.invent:
        fields = [_with_invented_words(rng, field) for field in fields]
    rng.shuffle(fields)
    if options.max_columns is not None:
        fields = _fewer(fields, skills, options.max_columns)
    most = min(14, options.max_rows or 14)
    num_rows = rng.randint(min(most, 11 if is_large else 6), most)
    num_categories = rng.randint(4, 6) if is_large else rng.randint(2, 4)
    num_categories = min(num_categories, most // 2)
    columns = [_make_values(rng, field, num_rows, num_categories) for field in fields]
    table = Table(
        _make_table_name(rng, names, options),
        tuple(Column(field.name, field.type) for field in fields),
        tuple(zip(*columns, strict=True)),
    )
    return Sample(table, tuple(fields), _connect(table, fields), options)


def make_value(rng: Random, field: Field) -> Value:
    """Returns a random value that fits a column."""
    return _make_values(rng, field, 1, 1)[0]


def to_literal(value: Value) -> str:
    """Returns a value as SQL."""
    if isinstance(value, str | date):
        return f"'{value}'"
    return str(value)


def _connect(table: Table, fields: list[Field]) -> sqlite3.Connection:
    """Numbers are REAL there, so that division is MySQL's; text compares regardless of case."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    types = ("TEXT COLLATE NOCASE", "REAL")
    columns = ", ".join(f"{field.name} {types[field.is_number]}" for field in fields)
    connection.execute(f"CREATE TABLE {table.name} ({columns})")
    marks = ", ".join("?" * len(fields))
    connection.executemany(
        f"INSERT INTO {table.name} VALUES ({marks})",  # noqa: S608 (its own names)
        [[_to_stored(value) for value in row] for row in table.rows],
    )
    return connection


def _to_stored(value: Value) -> str | float:
    return float(value) if isinstance(value, int | float | Decimal) else str(value)


def _make_values(rng: Random, field: Field, num_rows: int, num_categories: int) -> list[Value]:
    if field.kind == "name":
        return list(_pick_texts(rng, field.spec, num_rows))
    if field.kind == "category":
        chosen = _pick_texts(rng, field.spec, num_categories)
        return [rng.choice(chosen) for _ in range(num_rows)]
    pool = [_make_scalar(rng, field) for _ in range(num_rows)]
    if rng.random() < 0.5:
        pool = pool[: max(2, num_rows // 2)]
    return [rng.choice(pool) if len(pool) < num_rows else pool[i] for i in range(num_rows)]


def _make_scalar(rng: Random, field: Field) -> Value:
    if field.kind == "date":
        return _FIRST_DAY + timedelta(days=rng.randrange(4000))
    low, high = _RANGES[field.spec]
    if field.kind == "int":
        step = 1 if high < 500 else 10 if high < 2000 else 50
        return rng.randrange(low, high + 1, step)
    quarters = rng.randrange(4 * low, 4 * high + 1)
    return Decimal(quarters * 25).scaleb(-2) if field.kind == "decimal" else quarters / 4


def _pick_texts(rng: Random, spec: str, num_texts: int) -> list[str]:
    if spec in _JOINED:
        first, second, form = _JOINED[spec]
        firsts = rng.sample(_POOLS[first], num_texts)
        return [form.format(word, rng.choice(_POOLS[second])) for word in firsts]
    if spec == _INVENTED:
        return [_invent_word(rng) for _ in range(num_texts)]
    options = _POOLS.get(spec) or spec.split(",")
    return rng.sample(options, min(num_texts, len(options)))


def _make_table_name(rng: Random, names: list[str], options: TableOptions) -> str:
    prefix = f"{rng.choice(_POOLS['PREFIX'])}_" if rng.random() < 0.4 else ""
    suffix = f"_{rng.choice(_POOLS['SUFFIX'])}" if rng.random() < 0.4 else ""
    name = f"{prefix}{rng.choice(names)}{suffix}"
    return name if options.allows_name(name) else _make_table_name(rng, names, options)


def _fewer(fields: list[Field], skills: Sequence[str], max_columns: int) -> list[Field]:
    """Keeps that many columns, or those that the skills need: categories first, then numbers."""
    num_categories = 1 + ("group_by_multiple_columns" in skills)
    num_numbers = 1 + any("calculation" in s or "nested" in s for s in skills)
    first = [field for field in fields if field.kind == "category"][:num_categories]
    first += [field for field in fields if field.is_number][:num_numbers]
    kept = sorted(fields, key=lambda field: field not in first)[: max(max_columns, len(first))]
    return [field for field in fields if field in kept]


def _with_type(rng: Random, field: Field) -> Field:
    if field.kind == "float":
        return replace(field, type=rng.choice(("FLOAT", "DOUBLE")))
    if field.kind in ("name", "category"):
        types = ("TEXT", "VARCHAR(50)", "VARCHAR(100)", "VARCHAR(255)")
        return replace(field, type=rng.choice(types))
    return field


def _with_invented_words(rng: Random, field: Field) -> Field:
    is_invented = field.kind in ("name", "category") and rng.random() < 0.5
    return replace(field, spec=_INVENTED) if is_invented else field


def _invent_word(rng: Random) -> str:
    """Returns a capitalised word of 3 to 9 letters that can be said, such as "Tekolar"."""
    letters = [rng.choice(_LETTERS[index % 2]) for index in range(rng.randint(3, 9))]
    return "".join(letters).capitalize()


def _parse_column(column: str) -> Field:
    mark = next(char for char in column if char in _MARKS)
    name, _, spec = column.partition(mark)
    kind, type_name = _MARKS[mark]
    return Field(name, kind, spec, type_name)


def _read_lines(name: str) -> list[str]:
    return Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()


_MARKS: dict[str, tuple[Kind, str]] = {
    "=": ("name", ""),
    "@": ("category", ""),
    "#": ("int", "INT"),
    "$": ("decimal", "DECIMAL(10,2)"),
    "~": ("float", ""),
    "!": ("date", "DATE"),
}
_DOMAINS = [
    (names.split(), [_parse_column(column) for column in columns.split()])
    for names, columns in (line.split("|") for line in _read_lines("generator_domains.txt"))
]
_POOLS = {
    name: words.split()
    for name, words in (line.split(": ") for line in _read_lines("generator_names.txt"))
}
_RANGES = {
    field.spec: tuple(int(part) for part in field.spec.split("-"))
    for _, fields in _DOMAINS
    for field in fields
    if field.is_number
}
