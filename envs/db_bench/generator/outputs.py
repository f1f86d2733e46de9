"""What generated DB-bench queries select: columns, aggregates and calculations with them."""

import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from agentpeft.envs.db_bench.backends.protocol import Value
from agentpeft.envs.db_bench.generator.conditions import NoTaskHereError, Scene
from agentpeft.envs.db_bench.generator.tables import Field

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


def column_output(scene: Scene, column: Field) -> Output:
    """Returns a plain column."""
    kind = _COLUMN_KINDS.get(column.kind, column.kind)
    return Output(scene.ref(column), column.words, kind)


def make_aggregates(scene: Scene) -> list[Output]:
    """Returns one aggregate or two; one leaves ties if two order keys need them."""
    first, second = make_aggregate(scene), make_aggregate(scene)
    if "group_by_multiple_columns" not in scene.skills and "order_by_m" in str(scene.skills):
        first = Output("COUNT(*)", scene.say("count"), "int")
    return [first, second] if first.sql != second.sql and scene.rng.random() < 0.4 else [first]


def make_aggregate(scene: Scene) -> Output:
    """Returns an aggregate."""
    function = scene.rng.choice(("COUNT", "SUM", "AVG", "MAX", "MIN"))
    if function == "COUNT":
        return Output("COUNT(*)", scene.say("count"), "int")
    column = scene.rng.choice(scene.sample.numbers)
    kind: str | int = 2 if column.kind == "decimal" else column.kind
    if function == "SUM" and kind == "int":
        kind = 0
    elif function == "AVG":
        kind = _AVERAGE_DECIMALS.get(column.kind, kind)
    words = scene.say(function, c=column.words)
    return Output(f"{function}({scene.ref(column)})", words, kind)


def make_calculation(scene: Scene) -> Output:
    """Returns a calculation with aggregates. Raises: NoTaskHereError on too few numbers."""
    numbers = scene.sample.numbers
    if len(numbers) < 2:
        raise NoTaskHereError
    column, other = scene.rng.sample(numbers, 2)
    name, other_name = scene.ref(column), scene.ref(other)
    sql, phrase = scene.rng.choice(
        (
            (f"MAX({name}) - MIN({name})", "spread"),
            (f"SUM({name}) / COUNT(*)", "ratio"),
            (f"SUM({name}) + SUM({other_name})", "two_sums"),
        )
    )
    return Output(sql, scene.say(phrase, c=column.words, d=other.words), "float")


def add_alias(scene: Scene, outputs: list[Output]) -> tuple[list[Output], list[str]]:
    """Returns the outputs, one of them renamed where that is asked for, and what says so."""
    words = []
    if "column_alias" in scene.skills:
        index = scene.rng.randrange(len(outputs))
        if any("(" in out.sql for out in outputs):
            index = next(i for i, out in enumerate(outputs) if "(" in out.sql)
        chosen = outputs[index]
        core = chosen.sql.replace(scene.prefix, "").replace("COUNT(*)", "num_rows").lower()
        core = re.sub(r"\W+", "_", core).strip("_")
        alias = scene.rng.choice(("{}_value", "result_{}", "{}_shown", "my_{}")).format(core)
        outputs = [*outputs[:index], chosen._replace(alias=alias), *outputs[index + 1 :]]
        words.append(scene.say("column_alias", c=f"the {chosen.words}", alias=f"`{alias}`"))
    if scene.prefix:
        words.append(scene.say("table_alias", alias=f"`{scene.prefix[:-1]}`"))
    return outputs, words
