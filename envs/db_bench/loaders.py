"""DB-bench task files: LifelongAgentBench's (LAB), its hub rows, and AgentBench's.

LAB's `entry_dict.json` maps an index to an entry; hub rows are such entries whose nested fields are
Python literals in strings, with a `sample_index`. AgentBench's `dbbench/*.jsonl` has text columns
only; a change's `label` is its SQL, a question's is the answer (its `sql` is often wrong, so it is
not read).
"""

import re
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from math import isfinite
from pathlib import Path

from agentpeft.envs.core.errors import DataError, SettingsError
from agentpeft.envs.db_bench.backends.protocol import Column, Row, Table, Value
from agentpeft.envs.db_bench.skills import SKILLS, detect_skills
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.tasks.records import Json, Record
from agentpeft.envs.tasks.taskset import Taskset

_FIRST_WORD = re.compile(r"(?:[\s(]|/\*.*?\*/|(?:--|#)[^\n]*\n)*+([a-zA-Z]+)", re.DOTALL)
_CHANGE = re.compile(r"\s*(?:INSERT\s+INTO|UPDATE\s.+?\sSET|DELETE\s+FROM)\s", re.I | re.DOTALL)
_FORMATS = {
    "LifelongAgentBench": ("instruction", "answer_info", "table_info", "skill_list"),
    "AgentBench": ("description", "table", "label"),
}
_NESTED_FIELDS = ("answer_info", "table_info", "skill_list")


def load_tasks(path: str | Path) -> Taskset[DBBenchTask]:
    """Returns a file's tasks; the format is told from the fields of each row.

    A task's id is its index in LAB's files and hub rows, and "dev#5" for row 5 of AgentBench's
    `dev.jsonl`. Raises: DataError.
    """
    stem = Path(path).stem
    try:
        return Taskset.load(path, lambda record: parse_task(record, stem))
    except SettingsError as error:
        raise DataError(f"{path}: {error}") from None


def parse_task(record: Record, stem: str) -> DBBenchTask:
    """Returns the task of one row of a file named `stem`. Raises: DataError."""
    if "answer_info" in record.fields:
        return _parse_lab(record)
    if "description" in record.fields and "table" in record.fields:
        return _parse_agentbench(record, stem)
    raise record.refuse(_FORMATS)


def to_entry(task: DBBenchTask) -> dict[str, Json]:
    """Returns a task as an entry of LAB's `entry_dict.json`.

    Decimals become numbers, dates their text. A question without gold SQL gets a constant query of
    its label, since LAB wants one. Raises: SettingsError if the task has several tables, or neither
    a label nor an md5.
    """
    if len(task.tables) != 1:
        raise SettingsError(f"task {task.task_id}: an entry has 1 table, got {len(task.tables)}")
    if (task.md5 if task.is_write else task.label) is None:
        missing = "md5" if task.is_write else "label"
        raise SettingsError(f"task {task.task_id} has no {missing}, which an entry needs")
    table = task.tables[0]
    return {
        "instruction": task.instruction,
        "answer_info": {
            "direct": None if task.is_write else _to_json_rows(task.label or ()),
            "md5": task.md5 if task.is_write else None,
            "sql": task.gold_sql or _constant_query(task.label or ()),
        },
        "table_info": {
            "name": table.name,
            "column_info_list": [
                {"name": column.name, "type": column.type} for column in table.columns
            ],
            "row_list": _to_json_rows(table.rows),
        },
        "skill_list": list(task.skills),
    }


def _to_json_rows(rows: Sequence[Row]) -> list[Json]:
    return [[_to_json(value) for value in row] for row in rows]


def _to_json(value: Value) -> Json:
    if isinstance(value, Decimal):
        return int(value) if value == int(value) and "." not in str(value) else float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, date | timedelta):
        return str(value)
    return value


def _constant_query(label: Sequence[Row]) -> str:
    def literal(value: Json) -> str:
        if isinstance(value, str):
            return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
        return "NULL" if value is None else str(value)

    if not label:
        return "SELECT NULL FROM DUAL WHERE FALSE"
    selects = (f"SELECT {', '.join(literal(_to_json(value)) for value in row)}" for row in label)
    return " UNION ALL ".join(selects)


def _parse_lab(record: Record) -> DBBenchTask:
    record = record.with_literals(_NESTED_FIELDS)
    answer = record.child("answer_info")
    sql = answer.get("sql", str).strip()
    first_word = _FIRST_WORD.match(sql)
    if not first_word:
        raise answer.error("sql", f"must be a statement, got {sql!r:.60}")
    is_write = first_word[1].upper() not in ("SELECT", "WITH")
    if is_write and answer.fields.get("direct") is not None and answer.fields.get("md5") is None:
        got = f"{first_word[1]!r:.60} (a change has an md5 and no direct)"
        raise answer.error("sql", f"must begin with SELECT or WITH, got {got}")
    wanted, other = ("md5", "direct") if is_write else ("direct", "md5")
    for name, is_null in ((wanted, False), (other, True)):
        if (answer.fields.get(name) is None) != is_null:
            kind = "a change" if is_write else "a SELECT"
            raise answer.error(name, f"must {'' if is_null else 'not '}be null for {kind}")
    label = None if is_write else _parse_rows(answer, "direct", None)
    return DBBenchTask(
        task_id=str(record.fields.get("sample_index", record.key)),
        instruction=record.get("instruction", str),
        skills=record.get_skills(SKILLS),
        tables=(_parse_table(record.child("table_info"), "name", "column_info_list", "row_list"),),
        is_write=is_write,
        gold_sql=sql,
        label=label,
        md5=answer.get("md5", str) if is_write else None,
    )


def _parse_agentbench(record: Record, stem: str) -> DBBenchTask:
    table = record.child("table")
    info = table.child("table_info")
    flat = Record(
        info.place, info.key, {**info.fields, "table_name": table.fields.get("table_name")}
    )
    parsed = _parse_table(flat, "table_name", "columns", "rows")
    label = record.get("label", list)
    md5 = None if record.fields.get("answer_md5") is None else record.get("answer_md5", str)
    kind = str(record.get("type", list)[:1]).strip("[]'").lower()
    is_write = kind in ("insert", "update", "delete")
    if not is_write and len(label) == 1 and _CHANGE.match(str(label[0])):
        known = "INSERT, UPDATE or DELETE, as its label is a change"
        raise record.error("type", f"must be {known}, got {record.fields['type']!r:.60}")
    gold_sql = str(label[0]).strip() if is_write and label else None
    skills = _detect_in(record, gold_sql) if gold_sql else ("select",)
    if is_write and (len(label) != 1 or kind not in skills):
        raise record.error("label", f"must be one {kind.upper()} statement, got {label!r:.60}")
    return DBBenchTask(
        task_id=f"{stem}#{record.key}",
        instruction=record.get("description", str),
        skills=skills,
        tables=(_as_text(parsed),),
        is_write=is_write,
        gold_sql=gold_sql,
        label=None if is_write else tuple((_to_value(record, "label", v),) for v in label),
        md5=md5.strip("[](),'") if is_write and md5 else None,
    )


def _detect_in(record: Record, sql: str) -> tuple[str, ...]:
    try:
        return detect_skills(sql)
    except DataError as error:
        raise record.error("label", f"is {error}") from None


def _as_text(table: Table) -> Table:
    """Returns a table as AgentBench makes it: whatever types it names, all columns are TEXT."""
    columns = tuple(Column(column.name, "TEXT") for column in table.columns)
    rows = tuple(tuple(None if v is None else str(v) for v in row) for row in table.rows)
    return Table(table.name, columns, rows)


def _parse_table(record: Record, name: str, columns: str, rows: str) -> Table:
    parsed = []
    for index, column in enumerate(record.get(columns, list)):
        if not isinstance(column, dict):
            raise record.error(f"{columns}[{index}]", f"must be an object, got {column!r:.60}")
        item = Record(f"{record.place}: {columns}[{index}]", record.key, column)
        parsed.append(Column(item.get("name", str), item.get("type", str)))
    if not parsed:
        raise record.error(columns, "has no columns")
    table_name = record.get(name, str)
    if not table_name:
        raise record.error(name, "is empty")
    return Table(table_name, tuple(parsed), _parse_rows(record, rows, len(parsed)))


def _parse_rows(record: Record, field: str, width: int | None) -> tuple[Row, ...]:
    """Returns rows of scalars; `width` None takes rows of any width."""
    parsed = []
    for index, row in enumerate(record.get(field, list)):
        place = f"{field}[{index}]"
        if not isinstance(row, list):
            raise record.error(place, f"must be a list of values, got {row!r:.60}")
        if width is not None and len(row) != width:
            raise record.error(place, f"has {len(row)} values for {width} columns")
        parsed.append(tuple(_to_value(record, place, value) for value in row))
    return tuple(parsed)


def _to_value(record: Record, place: str, value: Json) -> Value:
    if isinstance(value, list | dict) or (isinstance(value, float) and not isfinite(value)):
        raise record.error(place, f"must hold finite numbers and text, got {value!r:.60}")
    return int(value) if isinstance(value, bool) else value
