"""Options of DB-bench's generator: `TableOptions`."""

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from agentpeft.envs.db_bench.backends.protocol import Value
from agentpeft.envs.tasks.skill_generator import GeneratorOptions
from agentpeft.envs.tasks.taskset import Split, compute_split


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
