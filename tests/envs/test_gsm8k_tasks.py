"""GSM8K's files, templates and training rows."""

import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.machinery import ModuleSpec
from threading import Thread

import numpy as np
import pytest

from agentpeft.envs import DataError, SettingsError, Taskset, UnknownTaskError
from agentpeft.envs.gsm8k.answers import is_correct
from agentpeft.envs.gsm8k.env import GSM8KEnv
from agentpeft.envs.gsm8k.tasks import load_gsm8k, render_prompt
from agentpeft.envs.gsm8k.word_problems import WordProblems, load_templates

GOOD = {"question": "How many?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}


def write(path, rows):
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{broken", "data.jsonl:2: not JSON"),
        ("[1]", "data.jsonl:2: expected an object"),
        ({"answer": "#### 2"}, "data.jsonl:2: field 'question' is missing"),
        ({"question": "How many?"}, "data.jsonl:2: field 'answer' is missing"),
        ({**GOOD, "question": " "}, "data.jsonl:2: field 'question' is empty"),
        ({**GOOD, "answer": 2}, "data.jsonl:2: field 'answer' must be str, got int 2"),
        ({**GOOD, "answer": "2"}, "data.jsonl:2: field 'answer' has no '#### N'"),
        ({**GOOD, "answer": "#### two"}, "field 'answer' must end in a number after '####'"),
        ({**GOOD, "answer": "#### "}, "field 'answer' must end in a number after '####'"),
    ],
)
def test_bad_rows_get_one_line_with_file_line_and_field(tmp_path, row, message):
    path = write(tmp_path / "data.jsonl", [GOOD, row])
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        GSM8KEnv(data=str(path))
    assert "\n" not in str(caught.value)


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: no such file"):
        load_gsm8k(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="no tasks in this file"):
        load_gsm8k(write(tmp_path / "empty.jsonl", []))
    with pytest.raises(DataError, match=r"train\.jsonl: no such file"):
        load_gsm8k(tmp_path)


def test_a_folder_has_splits(tmp_path):
    write(tmp_path / "test.jsonl", [GOOD])
    assert [task.task_id for task in load_gsm8k(tmp_path, "test")] == ["test#0"]


def test_a_split_needs_a_folder_or_the_hub(tmp_path):
    path = write(tmp_path / "data.jsonl", [GOOD])
    with pytest.raises(SettingsError, match="split='test' needs data='hub' or a folder"):
        GSM8KEnv(data=str(path), split="test")


def test_data_is_a_path():
    with pytest.raises(SettingsError, match="data must be a path, 'hub' or None, got 3"):
        GSM8KEnv(data=3)


def test_the_hub_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SettingsError, match="needs datasets: pip install"):
        GSM8KEnv(data="hub")


class FakeHub:
    """Stands for the datasets package, with or without a copy in the cache."""

    __spec__ = ModuleSpec("datasets", None, origin="a test")

    def __init__(self, rows):
        self.rows = rows

    def load_dataset(self, name, config, split):
        assert (name, config) == ("openai/gsm8k", "main")
        if self.rows is None:
            raise ConnectionError("Couldn't reach the Hub\nwith many details")
        return self.rows[split]


def test_hub_rows_become_tasks(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(sys.modules, "datasets", FakeHub({"train": [GOOD], "test": [GOOD] * 2}))
    assert [task.task_id for task in load_gsm8k("hub", "test")] == ["test#0", "test#1"]
    assert load_gsm8k("hub").get("train#0").answer == "2"


def test_without_a_network_the_hub_says_so_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", FakeHub(None))
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # set by the call, unset after the test
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"'train' cannot be loaded: no network .*cache$"):
        load_gsm8k("hub")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_what_the_hub_refuses_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", FakeHub(None))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(DataError, match=r"cannot be loaded: Couldn't reach the Hub$"):
            load_gsm8k("hub")
        thread.join()


def test_a_row_has_the_prompt_of_the_environment_and_a_right_solution(tmp_path):
    (task,) = load_gsm8k(write(tmp_path / "data.jsonl", [GOOD]))
    assert render_prompt(task) == GSM8KEnv(data=str(tmp_path / "data.jsonl")).reset()[0]
    assert task.solution == GOOD["answer"] and is_correct(task.solution, task.answer)
    assert task.skills == ("1_steps",)


def test_published_solutions_stay_as_they_are(shared_data):
    path = shared_data / "gsm8k" / "train_300.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    tasks = load_gsm8k(path)
    assert [task.instruction for task in tasks] == [row["question"] for row in rows]
    assert [task.solution.split() for task in tasks] == [row["answer"].split() for row in rows]


def test_there_are_at_least_15_templates_and_all_are_drawn():
    tasks = Taskset.generate(WordProblems(), 1000, seed=0)
    drawn = {task.task_id.split(":")[0] for task in tasks}
    assert drawn == set(load_templates()["templates"]) and len(drawn) >= 15
    assert all(WordProblems().get(task.task_id) == task for task in tasks)
    assert len({task.instruction for task in tasks}) > 990


@pytest.mark.parametrize("template", load_templates()["templates"])
def test_every_step_of_a_template_holds(template):
    for seed in range(200):
        task = WordProblems().get(f"{template}:{seed}")
        sums = re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)", task.solution)
        assert len(sums) == int(task.skills[0].split("_")[0])
        for left, symbol, right, result, shown in sums:
            a, b = int(left), int(right)
            exact = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[symbol]
            assert exact == int(result) == int(shown) >= 0
        assert task.answer == sums[-1][3]
        assert not re.search(r"[{}]", task.instruction + task.solution)


@pytest.mark.parametrize("task_id", ["", "trays", "trays:", "trays:-1", "trays:01", "x:1"])
def test_ids_of_no_word_problem_are_refused(task_id):
    for bad in (task_id, f"trays:{2**32}"):
        with pytest.raises(UnknownTaskError):
            WordProblems().get(bad)


def test_draws_depend_on_the_generator_alone():
    first, second = (WordProblems().draw(np.random.default_rng(9)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "solution",
    [
        "#### 1\n#### 2",
        "#### 3\nNo.\n#### 2",
        r"\boxed{1} #### 2",
        "#### 2 or 3\n#### 2",
        "#### 2k\n#### 2",
        "#### 2\n" * 600,
    ],
)
def test_a_solution_that_states_another_answer_is_refused(tmp_path, solution):
    path = write(tmp_path / "data.jsonl", [GOOD, {**GOOD, "answer": solution}])
    with pytest.raises(DataError, match="field 'answer' states another final answer"):
        load_gsm8k(path)


@pytest.mark.parametrize("solution", ["#### 2\n#### 2.0", "the answer is 1\n#### 2", "#### $2"])
def test_a_solution_may_state_its_answer_again(tmp_path, solution):
    [task] = load_gsm8k(write(tmp_path / "data.jsonl", [{**GOOD, "answer": solution}]))
    assert is_correct(task.solution, task.answer)
