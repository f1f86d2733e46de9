"""What tasks a DB-bench generator makes of its skills: the settings that a task's id holds."""

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from agentpeft.envs.db_bench.database import Value
from agentpeft.envs.errors import SettingsError
from agentpeft.envs.splits import Split, check_split, split_of

_ID = re.compile(
    r"(all|[1-9]\d*)(?:;(train|test))?(?:;c([3-9]|[1-9]\d+))?(?:;r([6-9]|[1-9]\d+))?"
    r"(?:;t([3-9]|[1-9]\d+))?(;i)?"
)
_LEAST = {"max_phrasings": 1, "max_columns": 3, "max_rows": 6, "max_text_chars": 3}


@dataclass(frozen=True)
class GeneratorOptions:
    """Limits of generated tasks; None is no limit of its own.

    `max_phrasings`: ways to say each thing, plainest first. `max_columns` (3 or more) and
    `max_rows` (6 or more) of a table; skills that need more columns than that get them.
    `max_text_chars` (3 or more): of a text in gold SQL. `invent`: half of the text columns hold
    made-up words of 3 to 9 letters, and numbers are raised by any from 1 to 99, so that a small
    model learns to copy rather than to know a few hundred words by heart.

    `split`: each text, number, date and table name is for training or for testing, by a hash of its
    value. A task's table name and the literals of its gold SQL are of its split alone. Not held out
    are the counts of LIMIT and OFFSET, columns' names, and what else is in the cells.
    """

    max_phrasings: int | None = None
    split: Split | None = None
    max_columns: int | None = None
    max_rows: int | None = None
    max_text_chars: int | None = None
    invent: bool = False

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        check_split(self.split)
        limits = (self.max_phrasings, self.max_columns, self.max_rows, self.max_text_chars)
        for (name, least), limit in zip(_LEAST.items(), limits, strict=True):
            if limit is not None and (type(limit) is not int or limit < least):
                raise SettingsError(f"{name} must be an integer >= {least} or None, got {limit!r}")
        if not isinstance(self.invent, bool):
            raise SettingsError(f"invent must be True or False, got {self.invent!r}")

    @classmethod
    def of_id(cls, text: str) -> "GeneratorOptions | None":
        """Returns the options of an id's middle part; None if it is none's."""
        match = _ID.fullmatch(text)
        if match is None:
            return None
        texts = (match[1].removeprefix("all"), match[3], match[4], match[5])
        phrasings, columns, rows, chars = (int(text) if text else None for text in texts)
        split: Split | None = "test" if match[2] == "test" else "train" if match[2] else None
        return cls(phrasings, split, columns, rows, chars, invent=match[6] is not None)

    def __str__(self) -> str:
        """Returns the middle part of a task's id: "all", "1;test;c4;r8"."""
        parts = [str(self.max_phrasings or "all"), self.split]
        limits = {"c": self.max_columns, "r": self.max_rows, "t": self.max_text_chars}
        parts += [f"{mark}{limit}" for mark, limit in limits.items() if limit]
        return ";".join(filter(None, [*parts, "i" if self.invent else None]))

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
        return split_of(repr(float(value)))
    return split_of(str(value).lower())
