"""MySQL's aggregates that SQLite lacks, usable as window functions too."""

import math
import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial, reduce

from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import collation_key
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import SQLiteValue

MAX_CONCAT_CHARS = 1024


class Window(ABC):
    """An aggregate over the rows that it holds; `value` computes it from them."""

    def __init__(self) -> None:
        self.rows: deque[tuple[SQLiteValue, ...]] = deque()
        self.num_chars = 0

    def step(self, *row: SQLiteValue) -> None:
        """Takes a row in."""
        self.rows.append(row)
        self.num_chars += _num_chars(row)

    def inverse(self, *_row: SQLiteValue) -> None:
        """Lets the oldest row go."""
        self.num_chars -= _num_chars(self.rows.popleft())

    @abstractmethod
    def value(self) -> SQLiteValue:
        """Returns the aggregate of the rows held."""


def _num_chars(row: tuple[SQLiteValue, ...]) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))


class _Spread(Window):
    def __init__(self, is_sample: bool, is_root: bool) -> None:
        super().__init__()
        self.is_sample = is_sample
        self.is_root = is_root

    def value(self) -> SQLiteValue:
        """Returns the variance or the standard deviation, by Welford's recurrence as MySQL."""
        count, mean, total = 0, 0.0, 0.0
        for (number,) in self.rows:
            if isinstance(number, int | float):
                count += 1
                difference = number - mean
                mean += difference / count
                total += difference * (number - mean)
        divisor = count - self.is_sample
        if divisor <= 0:
            return None
        return math.sqrt(total / divisor) if self.is_root else total / divisor


class _GroupConcat(Window):
    def value(self) -> SQLiteValue:
        """Rows are (is distinct, separator, directions, text, keys …)."""
        rows = [row for row in self.rows if row[3] is not None]
        if not rows:
            return None
        is_distinct, separator, directions = rows[0][:3]
        for index in reversed(range(len(str(directions)))):
            rows.sort(
                key=lambda row: _sort_key(row[4 + index]),
                reverse=str(directions)[index] == "d",
            )
        texts = [str(row[3])[:MAX_CONCAT_CHARS] for row in rows]
        if is_distinct:
            texts = list({collation_key(text): text for text in reversed(texts)}.values())[::-1]
        pieces: list[str] = []
        num_chars = 0
        for text in texts:
            pieces.append(text)
            num_chars += len(text) + len(str(separator))
            if num_chars - len(str(separator)) >= MAX_CONCAT_CHARS:
                break
        return str(separator).join(pieces)[:MAX_CONCAT_CHARS]


def _sort_key(value: SQLiteValue) -> tuple[int, object]:
    if value is None:
        return 0, 0
    return (2, collation_key(value)) if isinstance(value, str) else (1, value)


class _Bits(Window):
    def __init__(self, combine: Callable[[int, int], int], start: int) -> None:
        super().__init__()
        self.combine = combine
        self.start = start

    def value(self) -> SQLiteValue:
        """Returns the bits of all rows combined."""
        numbers = (round(float(number)) for (number,) in self.rows if number is not None)
        return reduce(self.combine, numbers, self.start)


AGGREGATES: dict[str, Callable[[], Window]] = {
    "var_pop": partial(_Spread, False, False),
    "var_samp": partial(_Spread, True, False),
    "stddev_pop": partial(_Spread, False, True),
    "stddev_samp": partial(_Spread, True, True),
    "group_concat": _GroupConcat,
    "bit_or": partial(_Bits, operator.or_, 0),
    "bit_xor": partial(_Bits, operator.xor, 0),
    "bit_and": partial(_Bits, operator.and_, -1),
}
