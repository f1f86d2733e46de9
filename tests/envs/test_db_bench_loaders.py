"""DB-bench's task files: what loads, what it becomes, and what is wrong with the rest."""

import json
from datetime import date
from decimal import Decimal

import pyarrow.parquet
import pytest

from agentpeft.envs import DataError, SettingsError, Taskset
from agentpeft.envs.db_bench.backends.protocol import Column, Table
from agentpeft.envs.db_bench.generator import DBBenchGenerator
from agentpeft.envs.db_bench.loaders import load_tasks, to_entry
from agentpeft.envs.db_bench.tasks import DBBenchTask

READ = {
    "instruction": "Which pets are older than 3?",
    "answer_info": {
        "direct": [["Rex", 5]],
        "md5": None,
        "sql": "SELECT name, age FROM pets WHERE age > 3;",
    },
    "table_info": {
        "name": "pets",
        "column_info_list": [
            {"name": "name", "type": "VARCHAR(20)"},
            {"name": "age", "type": "INT"},
        ],
        "row_list": [["Rex", 5], ["Tom", 2]],
    },
    "skill_list": ["where_single_condition", "select"],
}
WRITE = {
    **READ,
    "answer_info": {"direct": None, "md5": "ab" * 16, "sql": "DELETE FROM pets WHERE age = 2"},
    "skill_list": ["delete", "where_single_condition"],
}


def write(path, data):
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_an_entry_becomes_a_task(tmp_path):
    read, change = load_tasks(write(tmp_path / "entry_dict.json", {"7": READ, "9": WRITE}))
    table = Table(
        "pets", (Column("name", "VARCHAR(20)"), Column("age", "INT")), (("Rex", 5), ("Tom", 2))
    )
    assert read == DBBenchTask(
        task_id="7",
        instruction="Which pets are older than 3?",
        skills=("select", "where_single_condition"),
        tables=(table,),
        is_write=False,
        gold_sql="SELECT name, age FROM pets WHERE age > 3;",
        label=(("Rex", 5),),
    )
    assert (change.task_id, change.is_write, change.label) == ("9", True, None)
    assert (change.gold_sql, change.md5) == ("DELETE FROM pets WHERE age = 2", "ab" * 16)


def hub_rows():
    nested = ("answer_info", "table_info", "skill_list")
    return [
        {**entry, **{name: repr(entry[name]) for name in nested}, "sample_index": index}
        for index, entry in ((4, READ), (5, WRITE))
    ]


@pytest.mark.parametrize("kind", ["object", "array", "jsonl", "parquet"])
def test_hub_rows_are_the_same_tasks_in_every_container(kind, tmp_path):
    rows = hub_rows()
    path = tmp_path / f"rows.{'parquet' if kind == 'parquet' else 'json'}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    else:
        write(path, rows if kind == "array" else {str(i): row for i, row in enumerate(rows)})
    entries = load_tasks(write(tmp_path / "entries.json", {"4": READ, "5": WRITE}))
    assert list(load_tasks(path)) == list(entries)


def test_agentbench_dev_split_loads_whole(shared_data):
    tasks = load_tasks(shared_data / "agentbench" / "dbbench" / "dev.jsonl")
    assert [task.task_id for task in tasks] == [f"dev#{index}" for index in range(60)]
    assert sum(task.is_write for task in tasks) == 40
    assert {column.type for t in tasks for column in t.tables[0].columns} == {"TEXT"}
    assert tasks.get("dev#7").label == (("1\u20130",), ("2\u20130",))
    assert tasks.get("dev#7").gold_sql is None
    insert = tasks.get("dev#29")
    assert insert.gold_sql.startswith("INSERT INTO Parish_LGA_Towns")
    assert insert.skills == ("insert",)
    assert all(len(task.md5) == 32 for task in tasks if task.is_write)
    assert all(isinstance(v, str) for t in tasks for row in t.tables[0].rows for v in row)


def test_generated_tasks_survive_the_round_trip(tmp_path):
    tasks = [t for t in Taskset.generate(DBBenchGenerator(), 100, seed=0) if not t.is_write]
    entries = {str(index): to_entry(task) for index, task in enumerate(tasks)}
    loaded = load_tasks(write(tmp_path / "entry_dict.json", entries))
    assert {task.task_id: to_entry(task) for task in loaded} == entries
    for task, again in zip(tasks, loaded, strict=True):
        kept = ("instruction", "skills", "is_write", "gold_sql", "md5")
        assert [getattr(task, name) for name in kept] == [getattr(again, name) for name in kept]


def test_agentbench_tasks_survive_the_round_trip(shared_data, tmp_path):
    tasks = load_tasks(shared_data / "agentbench" / "dbbench" / "dev.jsonl")
    entries = {task.task_id: to_entry(task) for task in tasks}
    loaded = load_tasks(write(tmp_path / "entry_dict.json", entries))
    assert [(t.tables, t.label, t.md5) for t in loaded] == [
        (t.tables, t.label, t.md5) for t in tasks
    ]


def test_an_entry_has_plain_values():
    columns = tuple(Column(name, "TEXT") for name in "abcd")
    row = (Decimal("2.50"), Decimal("30"), date(2024, 2, 29), None)
    task = DBBenchTask(
        task_id="x", instruction="?", tables=(Table("t", columns, (row,)),), is_write=False,
        label=(row,),
    )  # fmt: skip
    entry = to_entry(task)
    assert entry["answer_info"]["direct"] == [[2.5, 30, "2024-02-29", None]]
    assert entry["answer_info"]["sql"] == "SELECT 2.5, 30, '2024-02-29', NULL"
    assert entry["table_info"]["row_list"] == [[2.5, 30, "2024-02-29", None]]


def test_what_has_no_answer_makes_no_entry():
    table = Table("t", (Column("a", "INT"),), ())
    task = DBBenchTask(task_id="x", instruction="?", tables=(table,), is_write=True, gold_sql="…")
    with pytest.raises(SettingsError, match="task x has no md5"):
        to_entry(task)


@pytest.mark.parametrize(
    "sql",
    ["WITH x AS (SELECT 1 AS a) SELECT a FROM x", "(SELECT 1) UNION (SELECT 2)",
     "/* rows */ -- all\n select a FROM t", " SELECT 1;"],
)  # fmt: skip
def test_a_question_is_told_from_a_change_whatever_its_gold_query_begins_with(sql, tmp_path):
    entry = {**READ, "answer_info": {"direct": [[1, -2.5, None]], "sql": sql}}
    (task,) = load_tasks(write(tmp_path / "entry_dict.json", {"0": entry}))
    assert (task.is_write, task.label) == (False, ((1, -2.5, None),))


def changed(field, value):
    """Returns READ with one field replaced; "a.b" is a nested one."""
    outer, _, inner = field.partition(".")
    return {**READ, outer: {**READ[outer], inner: value} if inner else value}


def without(field):
    return {name: value for name, value in READ.items() if name != field}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"question": "?"}, "row 3: neither LifelongAgentBench's fields"),
        (without("answer_info"), "row 3 lacks answer_info, which LifelongAgentBench's rows have"),
        ([1], "row 3: expected an object"),
        (changed("instruction", 5), "row 3: field 'instruction' must be str, got int 5"),
        (changed("skill_list", ["limit_onyl"]), "'limit_onyl'; did you mean 'limit_only'"),
        (changed("skill_list", "__import__('os')"), "'skill_list' is not a Python literal"),
        (changed("table_info", "(" * 9999), "'table_info' is not a Python literal"),
        (changed("table_info", "[" + "1," * 999_999), "'table_info' has 1999999 characters"),
        (changed("answer_info.md5", "ab"), "field 'answer_info': field 'md5' must be null for"),
        (changed("answer_info.direct", None), "field 'direct' must not be null for a SELECT"),
        (changed("answer_info.sql", "-- none"), "field 'sql' must be a statement, got '-- none'"),
        (changed("answer_info", {**READ["answer_info"], "direct": None}), "must not be null"),
        (changed("answer_info", {**WRITE["answer_info"], "md5": None}), "'md5' must not be null"),
        (changed("answer_info.direct", [5]), r"field 'direct\[0\]' must be a list of values"),
        (changed("answer_info.sql", "SELEC 1"), "must begin with SELECT or WITH, got 'SELEC'"),
        (changed("answer_info.sql", "UPDATE pets SET age = 1"), "WITH, got 'UPDATE' .a change has"),
        (changed("answer_info", {**WRITE["answer_info"], "direct": []}), "be null for a change"),
        (changed("table_info.row_list", [["Rex"]]), r"'row_list\[0\]' has 1 values for 2 columns"),
        (changed("table_info.row_list", [["Rex", [5]]]), "must hold finite numbers and text"),
        (changed("table_info.row_list", [["R", float("nan")]]), "must hold finite numbers"),
        (changed("table_info.column_info_list", [{"name": "a"}]), r"list\[0\]: field 'type' is"),
        (changed("table_info.column_info_list", []), "has no columns"),
        (changed("table_info.name", ""), "field 'name' is empty"),
    ],
)
def test_a_broken_entry_is_named_with_file_row_and_field(entry, problem, tmp_path):
    path = write(tmp_path / "entry_dict.json", {"1": READ, "3": entry})
    with pytest.raises(DataError, match=problem) as error:
        load_tasks(path)
    assert str(error.value).startswith(f"{path} row 3")
    assert "\n" not in str(error.value)


def test_a_repeated_index_is_an_error(tmp_path):
    path = write(tmp_path / "rows.json", [{**READ, "sample_index": 4}] * 2)
    with pytest.raises(DataError, match=r"rows.json.* repeats task id '4'"):
        load_tasks(path)


AGENTBENCH = {
    "description": "?",
    "label": ["1"],
    "type": ["other"],
    "table": {
        "table_name": "t",
        "table_info": {"columns": [{"name": "a", "type": "INT"}], "rows": [["1"]]},
    },
}


@pytest.mark.parametrize(
    ("fields", "md5"),
    [({}, None), ({"answer_md5": None}, None), ({"answer_md5": "[('ab',)]", "sql": {}}, "ab")],
)
def test_an_agentbench_change_has_its_md5_where_the_split_gives_one(fields, md5, tmp_path):
    change = {"type": ["DELETE"], "label": ["DELETE FROM t"], "add_description": "It is t."}
    path = write(tmp_path / "standard.jsonl", {**AGENTBENCH, **change, **fields})
    (task,) = load_tasks(path)
    assert (task.task_id, task.is_write, task.md5) == ("standard#0", True, md5)
    assert task.skills == ("delete",)


@pytest.mark.parametrize("label", ["Update", "insert into", "DELETE FROMAGE", "Updated to SET 5"])
def test_an_agentbench_answer_may_begin_as_a_change_does(label, tmp_path):
    path = write(tmp_path / "dev.jsonl", {**AGENTBENCH, "label": [label]})
    (task,) = load_tasks(path)
    assert task.label == ((label,),)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": ["INSERT"]}, "dev.jsonl:2: field 'label' must be one INSERT statement"),
        (
            {"type": ["UPDATE"], "label": [1]},
            "dev.jsonl:2: field 'label' must be one UPDATE statement",
        ),
        ({"label": "1"}, "dev.jsonl:2: field 'label' must be list"),
        ({"type": ["UPDTE"], "label": ["UPDATE t SET a = 1"]}, "'type' must be INSERT, UPDATE or"),
        ({"label": ["\ninsert into `t` VALUES (1)"]}, r"label is a change, got \['other'\]"),
        ({"type": [], "label": ["DELETE FROM t"]}, r"dev.jsonl:2: field 'type' .*, got \[\]"),
        ({"table": {"table_name": "t"}}, "dev.jsonl:2: field 'table': field 'table_info' is"),
    ],
)
def test_a_broken_agentbench_row_is_named(fields, problem, tmp_path):
    path = tmp_path / "dev.jsonl"
    rows = [AGENTBENCH, {**AGENTBENCH, **fields}]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(DataError, match=problem):
        load_tasks(path)
