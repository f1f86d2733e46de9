"""Tasks as rows of text: every kind survives a table, a file and another process."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal

import gymnasium
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpeft.apps.drivers.task_rows import from_rows, to_rows
from agentpeft.envs import ENV_IDS, DataError, SettingsError, Task, Taskset
from agentpeft.envs.arithmetic.env import ArithmeticEnv
from agentpeft.envs.db_bench import loaders as db_loaders
from agentpeft.envs.db_bench.backends.protocol import Column, Table
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.gsm8k.tasks import load_gsm8k
from agentpeft.envs.os_interaction import loaders as os_loaders

COLUMNS = ["task_kind", "task_id", "instruction", "fields"]


def through_a_table(tasks):
    """Returns tasks that were rows of an Arrow table, which is what `datasets` keeps."""
    table = pa.Table.from_pylist(to_rows(tasks))
    assert table.schema == pa.schema([(name, pa.string()) for name in COLUMNS])
    return from_rows(table.to_pylist())


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_generated_tasks_survive_a_table(env_id):
    source = gymnasium.make(env_id).unwrapped.task_source
    tasks = list(Taskset.generate(source, 100, seed=0))
    assert through_a_table(tasks) == tasks
    assert from_rows(map(json.loads, map(json.dumps, to_rows(tasks)))) == tasks


def test_tasks_with_working_survive_a_table():
    source = ArithmeticEnv(("multiplication",), 2, "worked").task_source
    tasks = list(Taskset.generate(source, 5, seed=0))
    assert through_a_table(tasks) == tasks


def test_third_party_tasks_survive_a_table(shared_data):
    agentbench = shared_data / "agentbench"
    tasks = [
        *db_loaders.load_tasks(agentbench / "dbbench" / "dev.jsonl"),
        *os_loaders.load_tasks(agentbench / "os_interaction" / "dev.json"),
        *os_loaders.load_tasks(agentbench / "os_interaction" / "train_200.json"),
        *load_gsm8k(shared_data / "gsm8k" / "train_300.jsonl"),
    ]
    assert len(tasks) > 500
    assert through_a_table(tasks) == tasks


values = st.one_of(
    st.none(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=8),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes().map(lambda moment: moment.replace(fold=0)),
    st.timedeltas(),
)


@given(st.lists(st.tuples(values, values)))
def test_every_value_of_a_cell_survives_a_table(rows):
    columns = (Column("a", "TEXT"), Column("$decimal", "DECIMAL(5,2)"))
    task = DBBenchTask(
        task_id="t",
        instruction="?",
        tables=(Table("t", columns, tuple(rows)),),
        is_write=False,
        label=tuple(rows),
    )
    made = from_rows(json.loads(json.dumps(to_rows([task]))))
    assert made == [task]
    assert repr(made) == repr([task])  # 1 is no 1.0, and 1.0 no Decimal("1.0")


@dataclass(frozen=True, kw_only=True)
class PuzzleTask(Task):
    """A kind of task from outside the suite."""

    moves: list[int] = field(default_factory=list)
    prices: dict[str, Decimal] = field(default_factory=dict)
    thing: object = None


def test_another_kind_of_task_survives_a_table():
    task = PuzzleTask(task_id="1", instruction="", moves=[1], prices={"$date": Decimal("1.50")})
    assert through_a_table([task, Task(task_id="2", instruction="x", skills=("a",))])[0] == task


def test_what_cannot_be_a_row_is_refused():
    with pytest.raises(SettingsError, match=r"task 1 cannot be a row: array.* is a ndarray"):
        to_rows([PuzzleTask(task_id="1", instruction="", thing=np.zeros(2))])


def replaced(**changes):
    row = to_rows([Task(task_id="1", instruction="")])[0]
    return {**row, **changes}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (replaced(fields=None), "column 'fields' must be text, got None"),
        (replaced(fields="{"), "no Task"),
        (replaced(fields="[]"), "no Task"),
        (replaced(fields='{"skils": []}'), "skils"),
        (replaced(fields='{"skills": {"$Table": {}}}'), r"unknown '\$Table'"),
        (replaced(fields='{"skills": {"$decimal": "x"}}'), "no Task"),
        (replaced(fields='{"skills": {"a": 1, "b": 2}}'), "no Task"),
        (replaced(fields='{"skills": {"$timedelta": [99999999999, 0, 0]}}'), "no Task"),
        (replaced(fields="[" * 100_000), "no Task"),
        (replaced(task_kind="os:system"), "import its module first"),
        (replaced(task_kind="agentpeft.envs.nothing.tasks:Task"), "no such module"),
        ({}, "column 'task_kind' must be text"),
    ],
)
def test_a_row_that_is_none_is_refused(row, problem):
    with pytest.raises(DataError, match=problem):
        from_rows([row])


def test_no_foreign_module_is_imported_for_a_row(tmp_path):
    (tmp_path / "foreign.py").write_text("raise SystemExit('imported')")
    code = (
        "from agentpeft.apps.drivers.task_rows import from_rows, DataError\n"
        "row = dict(task_kind='foreign:X', task_id='', instruction='', fields='{}')\n"
        "try:\n    from_rows([row])\n"
        "except DataError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "import its module first" in done.stdout


def test_rows_are_read_where_their_kind_was_not_imported_yet():
    task = DBBenchTask(
        task_id="t",
        instruction="?",
        tables=(Table("t", (Column("a", "DATE"),), ((date(2024, 1, 31),), (None,))),),
        is_write=False,
        label=((datetime(2024, 1, 31, 1), timedelta(seconds=1.5)),),
    )
    code = (
        "import json, sys\nfrom agentpeft.apps.drivers.task_rows import from_rows\n"
        "print(from_rows(json.load(sys.stdin)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(to_rows([task])),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str([task])
