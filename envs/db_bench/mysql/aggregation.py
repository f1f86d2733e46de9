"""MySQL's aggregates that SQLite lacks, usable as window functions too."""

import math
from abc import ABC, abstractmethod
from collections import deque

from agentpeft.envs.db_bench.mysql.collation import collation_key
from agentpeft.envs.db_bench.mysql.rows import SQLiteValue

MAX_CONCAT_CHARS = 1024


class _Window(ABC):
    """An aggregate over the rows that it holds; `value` computes it from them."""

    def __init__(self) -> None:
        self.rows: deque[tuple[SQLiteValue, ...]] = deque()

    def step(self, *row: SQLiteValue) -> None:
        """Takes a row in."""
        self.rows.append(row)

    def inverse(self, *_row: SQLiteValue) -> None:
        """Lets the oldest row go."""
        self.rows.popleft()

    @abstractmethod
    def value(self) -> SQLiteValue:
        """Returns the aggregate of the rows held."""

    def finalize(self) -> SQLiteValue:
        """Returns the aggregate of all rows."""
        return self.value()


class _Spread(_Window):
    is_sample = False
    is_root = False

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


class _VarPop(_Spread):
    pass


class _VarSamp(_Spread):
    is_sample = True


class _StddevPop(_Spread):
    is_root = True


class _StddevSamp(_Spread):
    is_sample = True
    is_root = True


class _GroupConcat(_Window):
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
        texts = [str(row[3]) for row in rows]
        if is_distinct:
            texts = list({collation_key(text): text for text in reversed(texts)}.values())[::-1]
        return str(separator).join(texts)[:MAX_CONCAT_CHARS]


def _sort_key(value: SQLiteValue) -> tuple[int, object]:
    if value is None:
        return 0, 0
    return (2, collation_key(value)) if isinstance(value, str) else (1, value)


class _Bits(_Window):
    start = 0

    def value(self) -> SQLiteValue:
        """Returns the bits of all rows combined."""
        result = self.start
        for (number,) in self.rows:
            if number is not None:
                result = self.combine(result, round(float(number)))
        return result

    def combine(self, left: int, right: int) -> int:
        """Returns two numbers combined."""
        return left | right


class _BitXor(_Bits):
    def combine(self, left: int, right: int) -> int:
        return left ^ right


class _BitAnd(_Bits):
    start = -1

    def combine(self, left: int, right: int) -> int:
        return left & right


AGGREGATE_CLASSES: dict[str, type[_Window]] = {
    "var_pop": _VarPop,
    "var_samp": _VarSamp,
    "stddev_pop": _StddevPop,
    "stddev_samp": _StddevSamp,
    "group_concat": _GroupConcat,
    "bit_or": _Bits,
    "bit_xor": _BitXor,
    "bit_and": _BitAnd,
}
