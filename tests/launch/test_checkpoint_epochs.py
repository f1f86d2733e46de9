"""`output.checkpoint_interval = "epoch"`: a checkpoint when a task file has been gone through."""

import json
from contextlib import closing

import pytest
from word_problem_files import write_word_problems

from agentpeft.launch import prepare_data
from agentpeft.launch.train import main
from agentpeft.policies.checkpointing.checkpoints import list_checkpoints
from agentpeft.policies.rollout.environments import EnvPool

DB_BENCH = "AgentPEFT/DBBench-v0"
CONFIG = """
experiment = "epochs"
deterministic = true
environment = {id = "AgentPEFT/GSM8K-v0", kwargs = {data = "tasks.jsonl"}}
num_threads = 1
tiny = {hidden_size = 32, num_layers = 1}
lora = {rank = 2}
env_runners = {num_env_runners = 0, max_new_tokens = 2, engine = "scripted"}
training = {num_iterations = 7, num_groups = 2, group_size = 2}
evaluation = {num_tasks = 0}
output = {checkpoint_interval = "epoch", num_checkpoints_kept = 9, loggers = ["episodes"]}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the config, and a file of five tasks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "epochs.toml").write_text(CONFIG, "utf-8")
    write_word_problems(tmp_path / "tasks.jsonl", 5)
    return tmp_path


def saved(folder):
    (run_dir,) = (folder / "outputs/epochs").iterdir()
    return run_dir, [int(path.name[-6:]) for path in list_checkpoints(run_dir / "checkpoints")]


def test_a_run_saves_when_all_tasks_were_taken_once_more_also_after_a_resume(folder):
    """Two tasks an iteration: the 5th is taken in the 3rd, the 10th in the 5th, and so on."""
    assert main(["epochs.toml"]) == 0
    run_dir, numbers = saved(folder)
    assert numbers == [3, 5, 7]  # and at the end
    assert main(["--resume", str(run_dir), "training.num_iterations=9"]) == 0
    assert saved(folder)[1] == [3, 5, 7, 8, 9]


def test_an_epoch_of_chats_is_once_through_their_file(folder):
    rows = [{"prompt": f"{n} + 1?", "completion": str(n + 1)} for n in range(5)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    words = [
        "training.algorithm=sft",
        "training.chats=chats.jsonl",
        "training.group_size=8",
        "env_runners.engine=transformers",
    ]
    assert main(["epochs.toml", *words]) == 0
    assert saved(folder)[1] == [3, 5, 7]


def test_a_file_whose_tasks_are_drawn_by_skill_is_refused_with_the_way_out(folder, capsys):
    prepare_data.write_generated(folder / "db.json", DB_BENCH, 8, 0, skills=["insert"])
    words = [f"environment.id={DB_BENCH}", "evaluation.env_kwargs={}"]
    data = 'environment.kwargs={data="db.json", skills=["insert"]'
    assert main(["epochs.toml", *words, f"{data}}}"]) == 2
    assert "tasks are drawn by skill; set skill_mode='all'" in capsys.readouterr().err
    kwargs = {"data": "db.json", "skills": ["insert"], "skill_mode": "all"}
    with closing(EnvPool(DB_BENCH, kwargs, (0,), 60.0)) as pool:
        assert pool.num_tasks == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["environment.kwargs="], "needs a set of tasks that is gone through (a task file)"),
        (["curriculum.stages=[{}, {}]"], "goes with no curriculum.stages"),
        (["curriculum.sampling=frontier"], "goes with no curriculum.stages"),
        (["output.checkpoint_interval=epochs"], "output.checkpoint_interval: input should be"),
    ],
)
def test_an_epoch_of_tasks_without_an_end_is_refused_before_the_run(folder, capsys, words, message):
    assert main(["epochs.toml", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "outputs").exists()
