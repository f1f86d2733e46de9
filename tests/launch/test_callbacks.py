"""Callbacks: from the settings or from Python, called in order, and named when they fail."""

import sys

import pytest

from agentpeft.envs import SettingsError
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.train import main
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.loop.callbacks import Callbacks
from agentpeft.policies.settings.algorithm_config import AlgorithmConfig

MODULE = '''
from pathlib import Path
from agentpeft.policies.loop.callbacks import Callbacks

class Telling(Callbacks):
    """Writes down who was called, beside the module."""

    def __init__(self):
        self.tell("made")

    def tell(self, *words):
        with (Path(__file__).parent / "told").open("a") as file:
            print(*words, file=file)

    def on_episode_end(self, algorithm, episode, *, is_evaluation):
        self.tell("episode", is_evaluation, episode.sample, episode.messages[0][0])

    def on_iteration_end(self, algorithm, metrics):
        metrics["mine/answer"] = 42
        self.tell("iteration", algorithm.iteration, "train/accuracy" in metrics)

    def on_checkpoint(self, algorithm, path):
        self.tell("checkpoint", path.name, (path / "manifest.json").is_file())

class Failing(Callbacks):
    def on_checkpoint(self, algorithm, path):
        raise KeyError("no such thing")

class Misspelt(Callbacks):
    def on_iteration_ends(self, algorithm, metrics):
        pass

class Hungry(Callbacks):
    def __init__(self, food):
        pass

class Broken(Callbacks):
    def __init__(self):
        raise OSError("no place")

class Other:
    pass
'''
CONFIG = """
experiment = "called"
deterministic = true
environment = {kwargs = {num_digits = 1, prompt = "compact"}}
num_threads = 1
tiny = {hidden_size = 32, num_layers = 1}
lora = {rank = 2}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 2, num_groups = 1, group_size = 2}
evaluation = {num_tasks = 1}
output = {loggers = ["episodes"]}
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs the command with callbacks of a module beside the config; returns the status."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hooks_of_mine.py").write_text(MODULE, "utf-8")
    (tmp_path / "called.toml").write_text(CONFIG, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name, *words: main([*(words or ["called.toml"]), f"callbacks={name}"])
    sys.modules.pop("hooks_of_mine", None)


def test_those_of_the_settings_are_called_in_the_order_of_things(train, tmp_path):
    assert train("hooks_of_mine:Telling") == 0
    played = ["episode False 0 user", "episode False 1 user"]
    evaluated = "episode True 0 user"
    told = ["made", evaluated, *played, "iteration 1 True", *played, "iteration 2 True"]
    told += ["checkpoint checkpoint-000002 True", evaluated]
    assert (tmp_path / "told").read_text().splitlines() == told
    (run_dir,) = (tmp_path / "outputs/called").iterdir()
    assert [line.get("mine/answer") for line in read_metrics(run_dir)] == [None, 42, 42, None]
    words = ("--resume", str(run_dir), "training.num_iterations=3")
    assert train("hooks_of_mine:Failing", *words) == 1


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("Failing", 1, "callback Failing.on_checkpoint raised KeyError: 'no such thing'"),
        ("Misspelt", 2, "nobody calls 'on_iteration_ends'; did you mean 'on_iteration_end'"),
        ("Hungry", 2, "callbacks Hungry: making it, TypeError: "),
        ("Broken", 2, "callbacks Broken: making it, OSError: no place"),
        ("Other", 2, "callbacks Other is no subclass"),
        ("Absent", 2, "hooks_of_mine has no 'Absent'"),
    ],
)
def test_what_is_wrong_with_a_class_is_one_line(train, capfd, name, status, message, tmp_path):
    assert train(f"hooks_of_mine:{name}") == status
    (line,) = [t for t in capfd.readouterr().err.splitlines() if t.startswith("error: ")]
    assert message in line
    assert (tmp_path / "outputs").exists() == (name in ("Failing", "Broken"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("no_module_of_mine:A", "module 'no_module_of_mine' cannot be imported"),
        ("justaname", "callbacks: string should match pattern"),
    ],
)
def test_a_name_that_is_none_is_said_before_the_run(train, capsys, setting, message):
    assert train(setting) == 2
    assert message in capsys.readouterr().err


def config_of(kind):
    config = AlgorithmConfig().tiny(hidden_size=32, num_layers=1).callbacks(kind)
    config = config.env_runners(num_env_runners=0, max_new_tokens=2)
    return config.training(num_groups=1, group_size=2).evaluation(num_tasks=0)


class Adding(Callbacks):
    """Adds what it was given to the metrics."""

    added = 1.0

    def on_iteration_end(self, algorithm, metrics):
        metrics["added"] = self.added


class Wrong(Adding):
    """Adds what is no number."""

    added = "much"


class Huge(Adding):
    """Adds what no float holds."""

    added = 10**400


def test_a_class_is_given_in_python_and_what_it_adds_must_be_a_number(tmp_path):
    with config_of(Adding).build_algo(tmp_path / "adding") as algorithm:
        assert algorithm.train()["added"] == 1.0
    with (
        config_of(Wrong).build_algo(tmp_path / "wrong") as algorithm,
        pytest.raises(TrainingError, match="metric 'added' must be a number, got 'much'"),
    ):
        algorithm.train()
    with (
        config_of(Huge).build_algo(tmp_path / "huge") as algorithm,
        pytest.raises(TrainingError, match="metric 'added' must be a number, got 1000"),
    ):
        algorithm.train()
    with pytest.raises(SettingsError, match="callbacks int is no subclass"):
        config_of(int).build_algo(tmp_path / "int")
    assert config_of("a_module:Name").to_settings().callbacks == "a_module:Name"
