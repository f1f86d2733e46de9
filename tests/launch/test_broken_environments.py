"""Environments and modules of others that are broken: the run names them in one line."""

import json
import sys
import time

import gymnasium
import pytest

from agentpeft.envs.arithmetic.env import ArithmeticEnv
from agentpeft.launch.train import main

TINY = """
experiment = "tiny"
num_threads = 1
tiny = {hidden_size = 32, num_layers = 2}
warm_start = {num_steps = 0}
env_runners = {num_env_runners = 0, max_new_tokens = 4, episode_timeout_s = 10}
training = {num_iterations = 1, num_groups = 2, group_size = 2}
evaluation = {num_tasks = 2}
output = {loggers = ["episodes"]}
"""
MODULES = {
    "raises": (
        "\nraise RuntimeError('no\\nlicence')",
        "RuntimeError: no licence (broken.py, line 2)",
    ),
    "divides": ("1 / 0", "ZeroDivisionError: division by zero (broken.py, line 1)"),
    "no Python": ("def f(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
    "exits": ("import sys\nsys.exit(3)", "SystemExit: 3 (broken.py, line 2)"),
    "ends": ("raise BaseException('end')", "BaseException: end (broken.py, line 1)"),
    "imports": ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
}
"""By what is wrong with a module: its source, and what is said."""


class Broken(ArithmeticEnv):
    """Raises `error` in one method, or hangs there."""

    def __init__(self, where, error):
        self.where, self.error = where, error
        self._act_up("init")
        super().__init__(num_digits=1)

    def _act_up(self, where):
        if where == self.where:
            if self.error is None:
                import threading

                threading.Event().wait()
            raise self.error

    def reset(self, *, seed=None, options=None):
        self._act_up("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._act_up("step")
        return super().step(action)

    def close(self):
        super().close()
        self._act_up("close")


ERRORS = {
    "an error": (KeyError("score"), "KeyError: 'score' (test_broken_environments.py, line "),
    "an exit": (SystemExit(3), "SystemExit: 3"),
    "an interrupt": (KeyboardInterrupt(), "KeyboardInterrupt ("),
    "an end": (BaseException("end"), "BaseException: end"),
}
for where in ("init", "reset", "step", "close"):
    for kind, (error, _) in [*ERRORS.items(), ("a hang", (None, ""))]:
        gymnasium.register(
            f"Broken/{where}-{kind.partition(' ')[2]}-v0",
            Broken,
            kwargs={"where": where, "error": error},
        )


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Runs the command; returns its status and the lines on standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path.parent / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")

    def run(*arguments):
        status = main(["tiny.toml", *arguments])
        return status, capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(
    "setting",
    ["environment.id=broken:X-v0", "environment.kwargs={reward = {reward_fn = 'broken:f'}}"],
    ids=["environment", "reward_fn"],
)
def test_a_module_that_cannot_be_imported_is_one_line(train, tmp_path, setting, kind):
    source, message = MODULES[kind]
    (tmp_path / "broken.py").write_text(source, encoding="utf-8")
    status, (line,) = train(setting)
    assert status == 2 and message in line and "'broken" in line
    assert not (tmp_path / "outputs").exists()
    sys.modules.pop("broken", None)


@pytest.mark.parametrize(
    "reward_fn", ["5", "true", "[1]", "{a = 1}", "1.5", "''", "'f'", "':'", "'os:nothing'"]
)
def test_a_reward_function_of_another_kind_is_one_line(train, reward_fn):
    status, (line,) = train(f"environment.kwargs={{reward = {{reward_fn = {reward_fn}}}}}")
    assert status == 2 and "reward_fn" in line


@pytest.mark.parametrize("setting", ["reward_fn", "turn_reward_fn"])
@pytest.mark.parametrize(("value", "shown"), [("None", "None"), ("float('nan')", "nan")])
def test_a_reward_function_that_returns_no_number_is_one_line(
    train, tmp_path, setting, value, shown
):
    source = f"# mine\ndef score(episode):\n    return {value}\n"
    (tmp_path / "broken.py").write_text(source, encoding="utf-8")
    status, lines = train(f"environment.kwargs={{reward = {{{setting} = 'broken:score'}}}}")
    place = f"{setting} broken:score ({tmp_path}/broken.py, line 2)"
    assert status == 1 and f"{place} returned {shown}, which is no finite number" in lines[-1]
    assert not any("attempt" in line or "Traceback" in line for line in lines)
    sys.modules.pop("broken", None)


PLAYED = "warm_start.env_kwargs={where = 'nowhere'}"
"""The oracle's episodes, which the tiny model's tokenizer is made of, are whole."""


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind != "an interrupt"])
@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_what_an_environment_raises_is_one_line_that_names_it(train, where, kind):
    name = f"Broken/{where}-{kind.partition(' ')[2]}-v0"
    for overrides in ([], [PLAYED]):
        status, lines = train(f"environment.id={name}", *overrides)
        assert lines[-1].startswith("error: ") and ERRORS[kind][1] in lines[-1], lines
        assert name in lines[-1] and not any("Traceback" in line for line in lines)
        assert status == (2 if where == "init" else 1)
        assert where == "init" or "task 'addition:" in lines[-1]


def test_an_environment_cannot_interrupt_the_run(train):
    status, lines = train("environment.id=Broken/step-interrupt-v0", PLAYED)
    assert status == 1 and "the environment raised KeyboardInterrupt" in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*ERRORS, "a hang"])
def test_an_environment_that_cannot_be_closed_does_not_spoil_a_run(train, caplog, kind):
    name = f"environment.id=Broken/close-{kind.partition(' ')[2]}-v0"
    status, lines = train(name, *([PLAYED] if kind == "a hang" else []))
    message = "it takes longer than 1 s" if kind == "a hang" else ERRORS[kind][1]
    said = [record.message for record in caplog.records if "environments failed" in record.message]
    assert status == 0 and said and all(message in line for line in said)
    assert not any("Traceback" in line for line in lines)


class Plain(gymnasium.Env):
    """No TextEnv: its prompt and observations are `text`, `num` times."""

    observation_space = action_space = gymnasium.spaces.Text(1000)

    def __init__(self, text="say one", num=1):
        self.text, self.num_turns = text * num, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_turns = 0
        return self.text, {}

    def step(self, action):
        self.num_turns += 1
        return self.text, float(self.np_random.random()), self.num_turns == 2, False, {}


gymnasium.register("Tests/PlainText-v0", Plain)


@pytest.mark.parametrize("kwargs", ["{}", "{text='\\ud83d'}"])
def test_an_environment_without_an_oracle_trains_whatever_it_says(train, tmp_path, kwargs):
    status, lines = train("environment.id=Tests/PlainText-v0", f"environment.kwargs={kwargs}")
    assert status == 0, lines
    (path,) = tmp_path.glob("outputs/tiny/*/sessions/train.jsonl")
    turns = [json.loads(line)["num_turns"] for line in path.open(encoding="utf-8")]
    assert turns == [2] * 4


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param("{text='x y ',num=5000000}", marks=pytest.mark.slow),
        "{text='x',num=20000000}",
    ],
)
def test_prompts_of_which_none_fits_are_soon_one_line(train, kwargs):
    start_s = time.process_time()
    many = "training.num_groups=8", "evaluation.num_tasks=0"
    environment = "environment.id=Tests/PlainText-v0", f"environment.kwargs={kwargs}"
    status, lines = train(*environment, *many)
    assert status == 1 and time.process_time() - start_s < 100
    assert "of 8 tasks no prompt leaves room for an action" in lines[-1]


def test_imitating_an_environment_without_an_oracle_says_what_to_do(train):
    status, lines = train("environment.id=Tests/PlainText-v0", "warm_start.num_steps=2")
    assert status == 2 and "set warm_start.num_steps = 0" in lines[-1]
