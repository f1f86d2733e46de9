"""Tasksets: order, ids, skills, splits, generation, loading."""

import json
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_env import EchoSource, EchoTask

from agentpeft.envs import DataError, SettingsError, Task, Taskset, UnknownTaskError
from agentpeft.envs.tasks.task import content_hash


def make_tasks(num_tasks):
    return [EchoSource().get(f"echo/{number}") for number in range(num_tasks)]


def ids(tasks):
    return [task.task_id for task in tasks]


def parse(record):
    return EchoTask(task_id=record.key, instruction="", word=record.get("word", str))


def test_a_taskset_is_a_sequence_in_the_given_order():
    tasks = make_tasks(5)
    taskset = Taskset(tasks)
    assert list(taskset) == tasks
    assert (len(taskset), taskset[0], taskset[-1]) == (5, tasks[0], tasks[4])
    assert list(taskset[1:3]) == tasks[1:3]
    assert tasks[2] in taskset


def test_an_empty_taskset_and_a_repeated_id_are_refused():
    with pytest.raises(SettingsError, match="'mine' has no tasks"):
        Taskset([], name="mine")
    with pytest.raises(SettingsError, match="repeats task id 'echo/0'"):
        Taskset([*make_tasks(2), *make_tasks(1)])


def test_get_finds_a_task_or_suggests_one():
    taskset = Taskset(make_tasks(100), name="mine")
    assert taskset.get("echo/7").word == "word7"
    with pytest.raises(UnknownTaskError, match="no task 'eco/7' in 'mine'; did you mean 'echo/7'"):
        taskset.get("eco/7")
    with pytest.raises(UnknownTaskError) as caught:
        taskset.get("zzz")
    assert "(100 in all)" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_skills_are_counted_by_name():
    assert Taskset(make_tasks(5)).skills == {"even": 3, "hard": 2, "odd": 2}


def test_filter_keeps_tasks_with_all_of_the_skills():
    taskset = Taskset(make_tasks(5))
    assert ids(taskset.filter(["odd", "hard"])) == ["echo/1", "echo/3"]
    assert ids(taskset.filter(["odd"])) == ["echo/1", "echo/3"]


@pytest.mark.parametrize(
    ("skills", "message"),
    [
        (["evn"], "unknown skill 'evn'; did you mean 'even'"),
        (["odd", "even"], r"no task in 'tasks' has skills \['even', 'odd'\]"),
    ],
)
def test_filter_says_why_nothing_is_left(skills, message):
    with pytest.raises(SettingsError, match=message):
        Taskset(make_tasks(5)).filter(skills)


@given(st.integers(2, 50), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_split_is_disjoint_complete_and_repeatable(num_tasks, fraction, seed):
    taskset = Taskset(make_tasks(num_tasks))
    if not 0 < round(num_tasks * fraction) < num_tasks:
        with pytest.raises(SettingsError, match="leaves one part empty"):
            taskset.split(fraction, seed)
        return
    first, second = taskset.split(fraction, seed)
    assert len(first) == round(num_tasks * fraction)
    assert sorted(ids(first) + ids(second)) == sorted(ids(taskset))
    assert ids(taskset.split(fraction, seed)[0]) == ids(first)


def test_shuffle_is_a_permutation_that_depends_on_the_seed_alone():
    taskset = Taskset(make_tasks(30))
    orders = [ids(taskset.shuffle(seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert all(sorted(order) == sorted(ids(taskset)) for order in orders)


def test_draw_is_uniform_and_follows_the_generator():
    taskset = Taskset(make_tasks(4))
    rng = np.random.default_rng(0)
    drawn = [taskset.draw(rng).task_id for _ in range(4000)]
    counts = [drawn.count(task_id) for task_id in ids(taskset)]
    assert all(850 < count < 1150 for count in counts)  # 5 standard deviations around 1000
    rng = np.random.default_rng(0)
    assert drawn[:20] == [taskset.draw(rng).task_id for _ in range(20)]


def test_generate_gives_distinct_tasks_by_seed():
    taskset = Taskset.generate(EchoSource(), 60, seed=3)
    assert len(set(ids(taskset))) == 60
    assert ids(taskset) == ids(Taskset.generate(EchoSource(), 60, seed=3))
    assert ids(taskset) != ids(Taskset.generate(EchoSource(), 60, seed=4))


def test_generate_can_exhaust_a_source_but_not_exceed_it():
    assert len(Taskset.generate(EchoSource(8), 8, seed=0)) == 8
    with pytest.raises(SettingsError, match="only 8 distinct tasks exist, 9 wanted"):
        Taskset.generate(EchoSource(8), 9, seed=0)
    with pytest.raises(SettingsError, match="no tasks"):
        Taskset.generate(EchoSource(8), 0, seed=0)


def test_load_parses_rows_and_names_the_broken_one(tmp_path):
    path = tmp_path / "words.jsonl"
    path.write_text('{"word": "a"}\n{"word": "b"}\n')
    assert [task.word for task in Taskset.load(path, parse)] == ["a", "b"]
    path.write_text('{"word": "a"}\n{"word": 3}\n')
    with pytest.raises(DataError, match=r"words\.jsonl:2: field 'word' must be str, got int 3"):
        Taskset.load(path, parse)


def test_load_refuses_a_file_without_tasks(tmp_path):
    path = tmp_path / "words.json"
    path.write_text(json.dumps([]))
    with pytest.raises(DataError, match=r"words\.json: no tasks in this file"):
        Taskset.load(path, parse)


@dataclass(frozen=True, kw_only=True)
class CellTask(Task):
    """A task with a value of any kind."""

    cell: object


def test_a_hash_tells_values_of_different_kinds_apart_and_knows_other_objects_by_id():
    cells = ["1.5", Decimal("1.5"), 1.5, b"1.5", date(2024, 1, 5), datetime(2024, 1, 5), None]
    tasks = [CellTask(task_id=str(i), instruction="", cell=cell) for i, cell in enumerate(cells)]
    hashes = [content_hash(task) for task in tasks]
    assert len(set(hashes)) == len(cells)
    assert hashes == [content_hash(replace(task, task_id="x")) for task in tasks]
    strange = [CellTask(task_id=name, instruction="", cell=object()) for name in "aab"]
    first, again, other = map(content_hash, strange)
    assert first == again != other
