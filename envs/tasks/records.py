"""Reading rows of JSON, JSONL and parquet files with errors that name file, row and field."""

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from agentpeft.envs.core.errors import DataError, did_you_mean

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
_MAX_LITERAL_CHARS = 1_000_000
_MAX_PROBLEMS = 10
_ROW_TEXTS = ("description", "instruction", "question")
"""A JSON object with a text in one of these is a row itself, not an object of rows."""

T = TypeVar("T")
JsonT = TypeVar("JsonT", dict[str, Json], list[Json], str, int, float, bool)


@dataclass(frozen=True)
class Record:
    """One row. `place` is "file:line" or "file row key"; `key` is the row's index or name."""

    place: str
    key: str
    fields: dict[str, Json]

    def get(self, field: str, kind: type[JsonT]) -> JsonT:
        """Returns a field's value. Raises: DataError if it is missing or not a `kind`."""
        if field not in self.fields:
            raise self.error(field, "is missing")
        value = self.fields[field]
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            got = f"{type(value).__name__} {value!r:.60}"
            raise self.error(field, f"must be {kind.__name__}, got {got}")
        return value

    def get_skills(self, known: Sequence[str]) -> tuple[str, ...]:
        """Returns what `skill_list` names, in the order of `known`. Raises: DataError."""
        names = self.get("skill_list", list)
        for name in names:
            if name not in known:
                hint = did_you_mean(str(name), known)
                raise self.error("skill_list", f"has the unknown skill {name!r:.40}{hint}")
        return tuple(skill for skill in known if skill in names)

    def child(self, field: str) -> "Record":
        """Returns a nested object as a record with its own errors."""
        return Record(f"{self.place}: field {field!r}", self.key, self.get(field, dict))

    def with_literals(self, names: Iterable[str]) -> "Record":
        """Returns the record with fields that hold Python literals in strings (a hub row's) parsed.

        Raises: DataError.
        """
        texts = {name: self.fields.get(name) for name in names}
        parsed = {n: _read_literal(self, n, t) for n, t in texts.items() if isinstance(t, str)}
        return Record(self.place, self.key, {**self.fields, **parsed})

    def refuse(self, formats: Mapping[str, Sequence[str]]) -> DataError:
        """Returns the error to raise about a row of none of some formats, given their fields.

        Of a format of which the row has the half or more, it names what is lacking.
        """
        name = max(formats, key=lambda name: len(self.fields.keys() & formats[name]))
        lacking = [field for field in formats[name] if field not in self.fields]
        if 2 * len(lacking) <= len(formats[name]):
            return DataError(f"{self.place} lacks {', '.join(lacking)}, which {name}'s rows have")
        known = " nor ".join(f"{n}'s fields ({', '.join(f)})" for n, f in formats.items())
        return DataError(f"{self.place}: neither {known}")

    def error(self, field: str, problem: str) -> DataError:
        """Returns the error to raise about a field."""
        return DataError(f"{self.place}: field {field!r} {problem}")


def _read_literal(record: Record, name: str, text: str) -> Json:
    if len(text) > _MAX_LITERAL_CHARS:
        raise record.error(name, f"has {len(text)} characters, {_MAX_LITERAL_CHARS} at most")
    try:
        return _literal_to_json(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise record.error(name, f"is not a Python literal ({reason:.80})") from None


def _literal_to_json(value: object) -> Json:
    if isinstance(value, list | tuple):
        return [_literal_to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _literal_to_json(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a {type(value).__name__} is no JSON value")


def read_records(path: str | Path) -> Iterator[Record]:
    """Yields the rows of a file.

    `.jsonl` has one object a line; `.json` an array, an object keyed by index, one row, or JSONL
    under the wrong name; `.parquet` needs pyarrow. Raises: DataError.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise DataError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
        if path.suffix == ".parquet":
            return _read_parquet(path)
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return _read_lines(path, text) if path.suffix == ".jsonl" else _read_json(path, text)


def parse_records(path: str | Path, parse: Callable[[Record], T]) -> list[T]:
    """Returns what `parse` makes of the rows of a file.

    Raises: DataError with what is wrong with each of the first rows that are refused.
    """
    parsed: list[T] = []
    problems: list[str] = []
    try:
        for record in read_records(path):
            try:
                parsed.append(parse(record))
            except DataError as error:
                problems.append(str(error))
                if len(problems) == _MAX_PROBLEMS:
                    break
    except DataError as error:  # what follows cannot be read
        problems.append(str(error))
    if len(problems) == _MAX_PROBLEMS:
        problems.append("more may follow")
    if problems:
        raise DataError("; ".join(problems))
    return parsed


def unique_fields(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Returns a JSON object's fields. Raises: DataError if a key is repeated (JSON keeps one)."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in fields if keys.count(key) > 1)
        raise DataError(f"an object has the key {repeated!r:.60} twice")
    return fields


def _parse(path: Path, line: int, text: str) -> Json:
    """Returns the value of a JSON text that begins in a line of a file. Raises: DataError."""
    try:
        value: Json = json.loads(text, object_pairs_hook=unique_fields)
    except DataError as error:
        raise DataError(f"{path}:{line}: {error}") from None
    except json.JSONDecodeError as error:
        place = f"{path}:{line + error.lineno - 1}"
        raise DataError(f"{place}: not JSON ({error.msg})") from error
    except (RecursionError, ValueError) as error:
        problem = f"nested too deeply or a number too long ({error})"
        raise DataError(f"{path}:{line}: {problem}") from None
    return value


def _read_json(path: Path, text: str) -> Iterator[Record]:
    try:
        data = _parse(path, 1, text) if text.strip() else []
    except DataError as error:
        cause = error.__cause__
        if not (isinstance(cause, json.JSONDecodeError) and cause.msg == "Extra data"):
            raise
        yield from _read_lines(path, text)
        return
    if isinstance(data, dict) and any(isinstance(data.get(name), str) for name in _ROW_TEXTS):
        data = [data]
    if not isinstance(data, dict | list):
        raise DataError(f"{path}: expected an array or an object of rows, got {data!r:.60}")
    for key, row in data.items() if isinstance(data, dict) else enumerate(data):
        yield _record(f"{path} row {key}", str(key), row)


def _read_lines(path: Path, text: str) -> Iterator[Record]:
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    for index, (number, line) in enumerate(lines):
        yield _record(f"{path}:{number}", str(index), _parse(path, number, line))


def _record(place: str, key: str, row: Json) -> Record:
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected an object, got {row!r:.60}")
    return Record(place, key, row)


def _read_parquet(path: Path) -> Iterator[Record]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path}: reading parquet needs pyarrow (pip install pyarrow)") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not a parquet file ({error})") from None
    for index, row in enumerate(rows):
        yield _record(f"{path} row {index}", str(index), row)
