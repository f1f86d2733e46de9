"""Tasks as rows of a table, and back: for `datasets`, pandas, parquet and JSONL.

All columns are text, so that the rows of any tasks make one table: `task_kind`, `task_id`,
`instruction`, and `fields`, the other fields as JSON. Lists decode to tuples; other values
are objects with one key: `{"$decimal": "1.50"}`, `{"$Table": {"name": "pets", …}}`.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from importlib import import_module
from math import isfinite
from typing import Any, TypedDict, cast, get_args, get_type_hints

from agentpeft.envs.core.errors import DataError, SettingsError
from agentpeft.envs.tasks.task import Task

_SUITE_MODULE = re.compile(r"agentpeft\.envs\.\w+\.tasks")
_TEXT_FIELDS = ("task_id", "instruction")
_WRITERS: Mapping[type, tuple[str, Callable[[Any], object]]] = {
    Decimal: ("$decimal", str),
    bytes: ("$bytes", bytes.hex),
    date: ("$date", date.isoformat),
    datetime: ("$datetime", datetime.isoformat),
    timedelta: ("$timedelta", lambda time: [time.days, time.seconds, time.microseconds]),
}
_READERS: Mapping[str, Callable[[Any], object]] = {
    "$float": float,
    "$decimal": Decimal,
    "$bytes": bytes.fromhex,
    "$date": date.fromisoformat,
    "$datetime": datetime.fromisoformat,
    "$timedelta": lambda parts: timedelta(*parts),
}


class TaskRow(TypedDict):
    """A task as a row; `task_kind` is "module:class"."""

    task_kind: str
    task_id: str
    instruction: str
    fields: str


def to_rows(tasks: Iterable[Task]) -> list[TaskRow]:
    """Returns a row for each task.

    Raises: SettingsError on a task with a field that is no text, number, date or bytes, no
    dataclass that its annotations name, and no tuple, list or mapping of these.
    """
    return [_to_row(task) for task in tasks]


def from_rows(rows: Iterable[Mapping[str, object]]) -> list[Task]:
    """Returns the tasks of rows that `to_rows` made; other columns are ignored.

    A kind of task from outside the suite must have been imported. Raises: DataError.
    """
    return [_to_task(row) for row in rows]


def is_task_row(row: Mapping[str, object]) -> bool:
    """Returns whether a row has the columns of `to_rows`."""
    return all(row.get(name) is not None for name in TaskRow.__annotations__)


def _to_row(task: Task) -> TaskRow:
    try:
        others = _encode_fields(task)
    except TypeError as error:
        raise SettingsError(f"task {task.task_id} cannot be a row: {error}") from None
    return TaskRow(
        task_kind=_get_kind_name(type(task)),
        task_id=task.task_id,
        instruction=task.instruction,
        fields=json.dumps(others),
    )


def _encode_fields(task: Task) -> dict[str, Any]:
    """Returns the fields without columns as JSON. Raises: TypeError where they cannot be."""
    records = _records_in(cast(Hashable, type(task)))
    names = [field.name for field in fields(task) if field.name not in _TEXT_FIELDS]
    return {name: _encode(getattr(task, name), records) for name in names}


def _to_task(row: Mapping[str, object]) -> Task:
    place = f"row of task {row.get('task_id')!r:.60}"
    texts: dict[str, str] = {}
    for name in TaskRow.__annotations__:
        value = row.get(name)
        if not isinstance(value, str):
            raise DataError(f"{place}: column {name!r} must be text, got {value!r:.60}")
        texts[name] = value
    kind = _find_kind(texts["task_kind"])
    try:
        others = json.loads(texts["fields"])
        records = _records_in(cast(Hashable, kind))
        values = {name: _decode(value, records) for name, value in others.items()}
        return kind(task_id=texts["task_id"], instruction=texts["instruction"], **values)
    except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DataError(f"{place}: no {kind.__name__} ({error})") from None


def _get_kind_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _find_kind(name: str) -> type[Task]:
    """Returns a kind of task. Rows are data, so only modules of the suite are imported."""
    module = name.partition(":")[0]
    if _SUITE_MODULE.fullmatch(module):
        try:
            import_module(module)
        except ModuleNotFoundError:
            raise DataError(f"no kind of task {name!r:.80}: no such module") from None
    kinds = [Task]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    named = [kind for kind in kinds if _get_kind_name(kind) == name]
    if not named:
        raise DataError(f"no kind of task {name!r:.80}; import its module first")
    return named[-1]


@cache
def _records_in(kind: type[Task]) -> dict[str, type]:
    """Returns the dataclasses and named tuples that a kind's annotations name, by their names."""
    records: dict[str, type] = {}
    hints = list(get_type_hints(kind).values())
    for hint in hints:
        hints.extend(get_args(hint))
        is_named_tuple = isinstance(hint, type) and issubclass(hint, tuple) and hint is not tuple
        if is_named_tuple or (isinstance(hint, type) and is_dataclass(hint)):
            if hint.__name__ not in records:
                hints.extend(get_type_hints(hint).values())
            records[hint.__name__] = hint
    return records


def _encode(value: object, records: Mapping[str, type]) -> Any:
    """Returns a value as JSON. Raises: TypeError where it cannot be one."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else {"$float": str(value)}
    if type(value) in _WRITERS:
        tag, write = _WRITERS[type(value)]
        return {tag: write(value)}
    name = type(value).__name__
    if records.get(name) is type(value):
        return {f"${name}": {n: _encode(getattr(value, n), records) for n in _field_names(value)}}
    if type(value) is tuple:
        return [_encode(item, records) for item in value]
    if isinstance(value, list):
        return {"$list": [_encode(item, records) for item in value]}
    if isinstance(value, Mapping):
        return {"$dict": [[_encode(part, records) for part in item] for item in value.items()]}
    raise TypeError(f"{value!r:.60} is a {name}")


def _field_names(record: Any) -> Iterable[str]:
    return [field.name for field in fields(record)] if is_dataclass(record) else record._fields


def _decode(value: Any, records: Mapping[str, type]) -> Any:
    """Returns the value of a JSON. Raises: TypeError, ValueError, AttributeError."""
    if isinstance(value, list):
        return tuple(_decode(item, records) for item in value)
    if not isinstance(value, dict):
        return value
    [(tag, content)] = value.items()
    if tag in _READERS:
        return _READERS[tag](content)
    if tag == "$list":
        return [_decode(item, records) for item in content]
    if tag == "$dict":
        return {_decode(key, records): _decode(item, records) for key, item in content}
    record = records.get(tag.removeprefix("$"))
    if record is None:
        raise TypeError(f"unknown {tag!r:.40}")
    return record(**{name: _decode(item, records) for name, item in content.items()})
