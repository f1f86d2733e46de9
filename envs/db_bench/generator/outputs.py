"""Select lists of generated DB-bench queries: columns, aggregates and calculations."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from operator import add
from typing import Any, NamedTuple, TypeAlias

from agentpeft.envs.db_bench.backends.protocol import Value
from agentpeft.envs.db_bench.generator.attempt import Attempt
from agentpeft.envs.db_bench.generator.tables import Field
from agentpeft.envs.db_bench.skills import ORDER_BY_MULTIPLE
from agentpeft.envs.tasks.skill_generator import NoTaskHereError

Group: TypeAlias = list[int]
"""The rows of a group by index; a row of a query without GROUP BY is a group of one."""
StoredValue: TypeAlias = str | float | None

_COLUMN_KINDS: dict[str, str | int] = {"name": "text", "category": "text", "decimal": 2}
_AVERAGE_DECIMALS = {"int": 4, "decimal": 6}


AGGREGATES: Mapping[str, Callable[[Sequence[Any]], float]] = {
    "SUM": sum,
    "AVG": lambda values: sum(values) / len(values),
    "MAX": max,
    "MIN": min,
    "SPREAD": lambda values: max(values) - min(values),
}


class Output(NamedTuple):
    """A selected expression; `compute` gives its value for a group, as a database has it.

    `kind` is "text", "date", "float", "int", or the number of decimals that MySQL prints.
    """

    sql: str
    words: str
    kind: str | int
    compute: Callable[[Group], StoredValue]
    alias: str = ""

    @property
    def shown(self) -> str:
        """The expression with its alias."""
        return f"{self.sql} AS {self.alias}" if self.alias else self.sql

    def get_sort_key(self, group: Group) -> Any:
        """Returns what ORDER BY compares: text regardless of case."""
        value = self.compute(group)
        return value.lower() if isinstance(value, str) else value

    def to_values(self, stored: Sequence[Any]) -> Sequence[Value]:
        """Returns what MySQL returns for computed values."""
        if self.kind == "date":
            return [date.fromisoformat(str(value)) for value in stored]
        if self.kind == "int":
            return list(map(int, stored))
        if isinstance(self.kind, int):
            return [Decimal(f"{value:.{self.kind}f}") for value in stored]
        return stored


def column_output(attempt: Attempt, column: Field) -> Output:
    """Returns a plain column."""
    kind = _COLUMN_KINDS.get(column.kind, column.kind)
    values = attempt.sample.stored(column)
    return Output(attempt.ref(column), column.words, kind, lambda group: values[group[0]])


def make_aggregates(attempt: Attempt) -> list[Output]:
    """Returns one aggregate or two; one leaves ties if two order keys need them."""
    first, second = make_aggregate(attempt), make_aggregate(attempt)
    has_one_key = "group_by_multiple_columns" not in attempt.skills
    if has_one_key and attempt.asks_for(ORDER_BY_MULTIPLE):
        first = _count(attempt)
    return [first, second] if first.sql != second.sql and attempt.rng.random() < 0.4 else [first]


def make_aggregate(attempt: Attempt) -> Output:
    """Returns an aggregate."""
    function = attempt.rng.choice(("COUNT", "SUM", "AVG", "MAX", "MIN"))
    if function == "COUNT":
        return _count(attempt)
    column = attempt.rng.choice(attempt.sample.numbers)
    kind: str | int = 2 if column.kind == "decimal" else column.kind
    if function == "SUM" and kind == "int":
        kind = 0
    elif function == "AVG":
        kind = _AVERAGE_DECIMALS.get(column.kind, kind)
    words = attempt.say(function, c=column.words)
    compute = _aggregate(function, attempt.sample.stored(column))
    return Output(f"{function}({attempt.ref(column)})", words, kind, compute)


def _count(attempt: Attempt) -> Output:
    return Output("COUNT(*)", attempt.say("count"), "int", len)


def _aggregate(function: str, values: Sequence[Any]) -> Callable[[Group], StoredValue]:
    aggregate = AGGREGATES[function]
    return lambda group: aggregate([values[index] for index in group]) if group else None


def make_calculation(attempt: Attempt) -> Output:
    """Returns a calculation with aggregates. Raises: NoTaskHereError on too few numbers."""
    numbers = attempt.sample.numbers
    if len(numbers) < 2:
        raise NoTaskHereError
    column, other = attempt.rng.sample(numbers, 2)
    name, other_name = attempt.ref(column), attempt.ref(other)
    values = attempt.sample.stored(column)
    sums: Sequence[Any] = [*map(add, values, attempt.sample.stored(other))]
    sql, phrase, compute = attempt.rng.choice(
        (
            (f"MAX({name}) - MIN({name})", "spread", _aggregate("SPREAD", values)),
            (f"SUM({name}) / COUNT(*)", "ratio", _aggregate("AVG", values)),
            (f"SUM({name}) + SUM({other_name})", "two_sums", _aggregate("SUM", sums)),
        )
    )
    return Output(sql, attempt.say(phrase, c=column.words, d=other.words), "float", compute)


def add_alias(attempt: Attempt, outputs: list[Output]) -> tuple[list[Output], list[str]]:
    """Returns the outputs, one renamed if the skills ask for it, and the words for that."""
    words = []
    if "column_alias" in attempt.skills:
        index = attempt.rng.randrange(len(outputs))
        if any("(" in out.sql for out in outputs):
            index = next(i for i, out in enumerate(outputs) if "(" in out.sql)
        chosen = outputs[index]
        core = chosen.sql.replace(attempt.prefix, "").replace("COUNT(*)", "num_rows").lower()
        core = re.sub(r"\W+", "_", core).strip("_")
        alias = attempt.rng.choice(("{}_value", "result_{}", "{}_shown", "my_{}")).format(core)
        outputs = [*outputs[:index], chosen._replace(alias=alias), *outputs[index + 1 :]]
        words.append(attempt.say("column_alias", c=f"the {chosen.words}", alias=f"`{alias}`"))
    if attempt.prefix:
        words.append(attempt.say("table_alias", alias=f"`{attempt.prefix[:-1]}`"))
    return outputs, words
