"""When two values, two rows and two bags of rows are the same answer."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property

from agentpeft.envs.core.number_equality import is_same_written_number
from agentpeft.envs.db_bench.backends.protocol import Row, TableContents, Value

_STORED_TOLERANCE = 1e-9
_STORED_ZERO_TOLERANCE = 1e-12
_LAST_BITS = 1e-14
_CHANGE_TOLERANCE = 1e-6
_LARGE = 1e300
"""Numbers beyond it count as near each other, since no float is beside an infinite one."""
_NUMBER = re.compile(
    r"[-+]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][-+]?[0-9]{1,3})?\Z"
)
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?\Z")
"""A text that is surely a number: `1e2`, `007` and `+7` may be names."""


def is_same_value(answer: Value, gold: Value) -> bool:
    """Returns whether an answered value is the gold one.

    Numbers agree by the rule of `number_equality`; a value of MySQL's types is written as it
    prints, so that an average `5.0000` is a decimal. A quoted number equals the number; a date
    equals its text. Other text is compared exactly, `1e2` and `007` too. NULL equals only NULL.

    >>> is_same_value("3.14159", Decimal("3.142"))
    True
    """
    if type(answer) is type(gold) and answer == gold:
        return True
    if answer is None or gold is None:
        return False
    answer, gold = _plain(answer), _plain(gold)
    if answer == gold:
        return True
    return _is_same_number(answer, gold)


def _plain(value: Value) -> int | float | Decimal | str | bytes | None:
    """Returns dates and times as MySQL writes them, everything else unchanged."""
    if isinstance(value, datetime):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        sign, value = ("-", -value) if value < timedelta() else ("", value)
        seconds, fraction = value.days * 86400 + value.seconds, value.microseconds
        clock = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{clock}.{fraction:06}" if fraction else clock
    return value


def _is_same_number(answer: Value, gold: Value) -> bool:
    answer_text, gold_text = _number_text(answer), _number_text(gold)
    if isinstance(gold, str) and not _PLAIN_NUMBER.match(gold):
        return False
    if isinstance(gold, str) and isinstance(answer, str) and not _PLAIN_NUMBER.match(answer):
        return False
    if answer_text is None or gold_text is None:
        return False
    return is_same_written_number(answer_text, gold_text)


def _number_text(value: Value) -> str | None:
    if isinstance(value, bool):
        return None
    text = value if isinstance(value, str) else str(value)
    return text if _NUMBER.match(text) else None


def is_same_row(answer: Row, gold: Row) -> bool:
    """Returns whether two rows have the same values in the same columns."""
    return len(answer) == len(gold) and all(map(is_same_value, answer, gold))


def is_same_sequence(answer: Sequence[Row], gold: Sequence[Row]) -> bool:
    """Returns whether two lists of rows agree row by row."""
    return len(answer) == len(gold) and all(map(is_same_row, answer, gold))


def is_same_stored_row(row: Row, gold: Row) -> bool:
    """Returns whether two stored rows are equal.

    Floating-point numbers are so within 1e-9 of the gold's size, since the same sum in another
    order differs in its last bits; a zero within 1e-12.
    """
    return len(row) == len(gold) and all(map(_is_same_stored_value, row, gold))


def _is_same_stored_value(value: Value, gold: Value) -> bool:
    if isinstance(value, float) and isinstance(gold, float):
        slack = _STORED_TOLERANCE * abs(gold) or _STORED_ZERO_TOLERANCE
        return value == gold or abs(value - gold) <= slack
    return value == gold


class ChangedRows:
    """Compares stored rows, some of which the gold solution has changed.

    The numbers that a row had at the start are those of the rows that agree with it in all columns
    which the gold solution leaves alone, as in a key; of a row that agrees with none, those of all
    rows that the gold solution has not left. A number that is nearer to one of them than to the
    gold number has not been changed, however small the change is; and the error must be small
    against the change too, but for the last bits.
    """

    def __init__(self, gold: TableContents, read_start: Callable[[], TableContents | None]) -> None:
        """`read_start` gives the table before the change; it is called where numbers are near."""
        self._gold, self._read_start = gold, read_start

    def is_same(self, row: Row, gold: Row) -> bool:
        """Returns whether a row, in the gold table's columns, is the gold row."""
        return is_same_stored_row(row, gold) and all(
            value == gold_value or self._is_changed(column, value, gold_value, gold)
            for column, (value, gold_value) in enumerate(zip(row, gold, strict=True))
        )

    def _is_changed(self, column: int, value: Value, gold: Value, gold_row: Row) -> bool:
        if not isinstance(value, float) or not isinstance(gold, float):
            return True
        numbers = self._numbers_at_start(gold_row)[column]
        if not numbers:
            return True
        # Changed means: nearer to the gold number than to any number that the row had at the start.
        error = abs(value - gold)
        nearest = min(_neighbours(numbers, gold), key=lambda old: abs(gold - old))
        slack = max(_LAST_BITS * abs(gold), _CHANGE_TOLERANCE * abs(gold - nearest))
        return error <= slack and all(
            error <= abs(value - old) for old in _neighbours(numbers, value)
        )

    def _numbers_at_start(self, gold_row: Row) -> list[list[float]]:
        """Returns the numbers of each gold column that a gold row may have had, sorted."""
        key = tuple(gold_row[column] for column in self._columns_left)
        return self._numbers_by_key.get(key, self._replaced) if key else self._replaced

    @cached_property
    def _start_rows(self) -> list[Row]:
        """The rows at the start in the gold table's columns; None stands for a new column."""
        start = self._read_start()
        if start is None:
            return []
        names = [name.lower() for name in start.columns]
        indices = [
            names.index(name) if name in names else None
            for name in map(str.lower, self._gold.columns)
        ]
        return [tuple(None if at is None else row[at] for at in indices) for row in start.rows]

    @cached_property
    def _columns_left(self) -> list[int]:
        """The gold columns that have the same values as at the start, in whichever rows."""
        return [
            column
            for column in range(len(self._gold.columns))
            if Counter(row[column] for row in self._start_rows)
            == Counter(row[column] for row in self._gold.rows)
        ]

    @cached_property
    def _numbers_by_key(self) -> dict[Row, list[list[float]]]:
        rows = defaultdict(list)
        for row in self._start_rows:
            rows[tuple(row[column] for column in self._columns_left)].append(row)
        return {key: self._get_numbers(alike) for key, alike in rows.items()}

    @cached_property
    def _replaced(self) -> list[list[float]]:
        """The numbers of the rows that the gold solution has not left."""
        replaced = Counter(self._start_rows) - Counter(self._gold.rows)
        return self._get_numbers(list(replaced.elements()))

    def _get_numbers(self, rows: Sequence[Row]) -> list[list[float]]:
        return [
            sorted(float(v) for row in rows if isinstance(v := row[column], float | int | Decimal))
            for column in range(len(self._gold.columns))
        ]


def _neighbours(numbers: list[float], value: float) -> list[float]:
    """Returns the one or two of sorted numbers between which a value lies."""
    place = bisect_left(numbers, value)
    return numbers[max(place - 1, 0) : place + 1]


def is_sub_bag(
    answer: Sequence[Row],
    gold: Sequence[Row],
    is_same: Callable[[Row, Row], bool] = is_same_row,
) -> bool:
    """Returns whether every answered row can be paired with a gold row of its own.

    With equal lengths this is equality of the bags. Rows that are written alike are paired first,
    the rest by augmenting paths, since agreement within a tolerance is not transitive.
    """
    return len(answer) <= len(gold) and _Pairing(answer, gold, is_same).is_complete()


def count_pairs(
    answer: Sequence[Row], gold: Sequence[Row], is_same: Callable[[Row, Row], bool]
) -> int:
    """Returns how many answered rows have a gold row of their own, each paired with the first.

    Where rows agree only within a tolerance, another pairing may have more.
    """
    return _Pairing(answer, gold, is_same).count_first_fits()


class _Pairing:
    """A largest flow between distinct rows, by augmenting paths; who fits whom is found when asked.

    `_unpaired` and `_spare` say how many of each answered and each gold row have no partner.
    """

    def __init__(
        self, answer: Sequence[Row], gold: Sequence[Row], is_same: Callable[[Row, Row], bool]
    ) -> None:
        self._is_same = is_same
        self._answer, self._unpaired = _count_alike(answer)
        self._gold, self._spare = _count_alike(gold)
        self._pairs: dict[int, Counter[int]] = defaultdict(Counter)
        """By gold row: how many of each answered row."""
        places = {repr(row): index for index, row in enumerate(self._gold)}
        for index, row in enumerate(self._answer):
            if (alike := places.get(repr(row))) is not None:
                self._pair(index, alike)

    def is_complete(self) -> bool:
        for index in range(len(self._answer)):
            while self._unpaired[index]:
                if not self._augment(index):
                    return False
        return True

    def count_first_fits(self) -> int:
        for index in range(len(self._answer)):
            for gold in self._fitting(index) if self._unpaired[index] else ():
                self._pair(index, gold)
        return sum(pairs.total() for pairs in self._pairs.values())

    def _pair(self, answer: int, gold: int) -> None:
        """Pairs as many as have no partner."""
        number = min(self._unpaired[answer], self._spare[gold])
        self._pairs[gold][answer] += number
        self._unpaired[answer] -= number
        self._spare[gold] -= number

    def _augment(self, start: int) -> bool:
        """Finds partners for answers `start` by breadth-first search, moving others if needed."""
        came_from: dict[int, int] = {}
        left: dict[int, int | None] = {start: None}
        """By answered row that is moved: the gold row that it leaves."""
        queue = [start]
        for answer in queue:
            for gold in self._fitting(answer):
                if gold in came_from:
                    continue
                came_from[gold] = answer
                if self._spare[gold]:
                    self._move(gold, came_from, left)
                    return True
                for other in self._pairs[gold]:
                    if other not in left and self._pairs[gold][other]:
                        left[other] = gold
                        queue.append(other)
        return False

    def _move(self, gold: int, came_from: dict[int, int], left: dict[int, int | None]) -> None:
        path, current = [], gold
        while True:
            answer = came_from[current]
            before = left[answer]
            path.append((answer, current, before))
            if before is None:
                break
            current = before
        moved = [self._pairs[before][answer] for answer, _, before in path if before is not None]
        number = min(self._unpaired[answer], self._spare[gold], *moved)
        for moving, place, before in path:
            self._pairs[place][moving] += number
            if before is not None:
                self._pairs[before][moving] -= number
        self._unpaired[answer] -= number
        self._spare[gold] -= number

    def _fitting(self, answer: int) -> Iterator[int]:
        row = self._answer[answer]
        key, number = _neighbourhood(row, self._column)
        group, slack = self._near.get(key, []), 1e-3 + 1e-5 * abs(number)
        start, end = (bisect_left(group, (edge, 0)) for edge in (number - slack, number + slack))
        return (index for _, index in group[start:end] if self._is_same(row, self._gold[index]))

    @cached_property
    def _column(self) -> int:
        """The gold rows' column with the most numbers, by which rows are found."""
        columns = zip(*self._gold, strict=False)
        sizes = [len({_number_text(value) for value in column}) for column in columns]
        return sizes.index(max(sizes)) if sizes else 0

    @cached_property
    def _near(self) -> dict[tuple[Hashable, ...], list[tuple[float, int]]]:
        near = defaultdict(list)
        for index, row in enumerate(self._gold):
            key, number = _neighbourhood(row, self._column)
            near[key].append((number, index))
        for group in near.values():
            group.sort()
        return near


def _count_alike(rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
    """Returns the rows that are written differently, and how many there are of each."""
    numbers, alike = Counter(map(repr, rows)), {repr(row): row for row in rows}
    return list(alike.values()), [numbers[text] for text in alike]


def _neighbourhood(row: Row, column: int) -> tuple[tuple[Hashable, ...], float]:
    """Returns a row without its numbers, and that of a column: rows that agree are near there."""
    texts = [_number_text(value) for value in row]
    text = texts[column] if column < len(texts) else None
    number = min(max(float(text or 0.0), -_LARGE), _LARGE)
    key = (_plain(value) if text is None else 0 for value, text in zip(row, texts, strict=True))
    return tuple(key), number
