"""Select lists of generated DB-bench queries: columns, aggregates and calculations."""

import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from agentpeft.envs.db_bench.backends.protocol import Value
from agentpeft.envs.db_bench.generator.families import Attempt
from agentpeft.envs.db_bench.generator.tables import Field
from agentpeft.envs.db_bench.skills import ORDER_BY_MULTIPLE
from agentpeft.envs.tasks.skill_generator import NoTaskHereError

_COLUMN_KINDS: dict[str, str | int] = {"name": "text", "category": "text", "decimal": 2}
_AVERAGE_DECIMALS = {"int": 4, "decimal": 6}


class Output(NamedTuple):
    """A selected expression.

    `kind` is "text", "date", "float", "int", or the number of decimals that MySQL prints.
    """

    sql: str
    words: str
    kind: str | int
    alias: str = ""

    @property
    def shown(self) -> str:
        """The expression with its alias."""
        return f"{self.sql} AS {self.alias}" if self.alias else self.sql

    def to_values(self, stored: Sequence[str | float]) -> Sequence[Value]:
        """Returns what MySQL returns for values that SQLite returned."""
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
    return Output(attempt.ref(column), column.words, kind)


def make_aggregates(attempt: Attempt) -> list[Output]:
    """Returns one aggregate or two; one leaves ties if two order keys need them."""
    first, second = make_aggregate(attempt), make_aggregate(attempt)
    has_one_key = "group_by_multiple_columns" not in attempt.skills
    if has_one_key and attempt.asks_for(ORDER_BY_MULTIPLE):
        first = Output("COUNT(*)", attempt.say("count"), "int")
    return [first, second] if first.sql != second.sql and attempt.rng.random() < 0.4 else [first]


def make_aggregate(attempt: Attempt) -> Output:
    """Returns an aggregate."""
    function = attempt.rng.choice(("COUNT", "SUM", "AVG", "MAX", "MIN"))
    if function == "COUNT":
        return Output("COUNT(*)", attempt.say("count"), "int")
    column = attempt.rng.choice(attempt.sample.numbers)
    kind: str | int = 2 if column.kind == "decimal" else column.kind
    if function == "SUM" and kind == "int":
        kind = 0
    elif function == "AVG":
        kind = _AVERAGE_DECIMALS.get(column.kind, kind)
    words = attempt.say(function, c=column.words)
    return Output(f"{function}({attempt.ref(column)})", words, kind)


def make_calculation(attempt: Attempt) -> Output:
    """Returns a calculation with aggregates. Raises: NoTaskHereError on too few numbers."""
    numbers = attempt.sample.numbers
    if len(numbers) < 2:
        raise NoTaskHereError
    column, other = attempt.rng.sample(numbers, 2)
    name, other_name = attempt.ref(column), attempt.ref(other)
    sql, phrase = attempt.rng.choice(
        (
            (f"MAX({name}) - MIN({name})", "spread"),
            (f"SUM({name}) / COUNT(*)", "ratio"),
            (f"SUM({name}) + SUM({other_name})", "two_sums"),
        )
    )
    return Output(sql, attempt.say(phrase, c=column.words, d=other.words), "float")


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
