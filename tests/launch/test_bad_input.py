"""What a person may get wrong in a training command: one line, exit status 2, nothing started."""

import json
import socket
import time
from importlib.metadata import distributions

import pytest
from qwen_model import save_qwen
from tiny_run import ANOTHER_MODEL

from agentpeft.launch.train import main
from agentpeft.policies.settings.config import Settings, setting_names

TINY = """
experiment = "tiny"
environment = {kwargs = {num_digits = 1, prompt = "compact"}}
tiny = {hidden_size = 32, num_layers = 2}
warm_start = {num_steps = 0}
env_runners = {num_env_runners = 0}
training = {num_iterations = 2, num_groups = 4, group_size = 2}
evaluation = {num_tasks = 4}
"""
WRONG_VALUES = ("nan", "-1", "1e400", "18446744073709551616", '"word"', "[1, 2]", "{a = 1}", "1.5")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs the command; returns its one line. It has written nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")

    def run(*arguments):
        before = sorted(tmp_path.rglob("*"))
        start_s = time.monotonic()
        assert main(arguments) == 2
        assert time.monotonic() - start_s < 60  # it hangs nowhere
        assert sorted(tmp_path.rglob("*")) == before
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        return line

    return run


def accepts(name, text):
    """Whether a setting is a number, or text, of such a value: then it is no wrong one."""
    section, _, key = name.rpartition(".")
    default = Settings().model_dump()
    value = (default[section] if section else default)[key]
    if text == '"word"':
        return isinstance(value, str) or value is None
    if text == "[1, 2]":
        return key == "clip_range"
    if text == "{a = 1}":
        return isinstance(value, dict)
    is_real = isinstance(value, float) or value is None
    return is_real and text in ("1.5", "18446744073709551616")


WRONG = [(name, text) for name in setting_names() for text in WRONG_VALUES]
WRONG = [(name, text) for name, text in WRONG if not accepts(name, text)]


@pytest.mark.parametrize("name", sorted({name for name, _ in WRONG}))
def test_a_value_of_the_wrong_kind_is_refused_by_the_settings_name(refused, name):
    for text in (text for known, text in WRONG if known == name):
        line = refused("tiny.toml", f"{name}={text}")
        assert name.rpartition(".")[2].rstrip("_") in line or name in line, line


def test_there_are_many_of_them():
    assert len(WRONG) > 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["training.num_groups=1000000000000"], "training.num_groups"),
        (["learners.max_tokens_per_micro_batch=10000000000000"], "max_tokens_per_micro_batch"),
        (["num_threads=100000000000"], "num_threads"),
        (["environment.id=CartPole-v9"], "unknown environment 'CartPole-v9'"),
        (["environment.id=nowhere:X-v0"], "No module named 'nowhere'"),
        (["environment.kwargs={foo = 1}"], "foo"),
        (["environment.kwargs={reward = {reward_fn = 5}}"], "reward_fn 5 is not callable"),
        (["environment.kwargs={reward = {reward_fn = 'nowhere:f'}}"], "reward_fn 'nowhere:f'"),
        (['output.dir="a\\u0000b"'], "it has a NUL character"),
        (["output.dir=~nobody-of-that-name/a"], "there is no such user"),
        (["model.adapter=nowhere"], "model.adapter 'nowhere' is no folder"),
        (
            [*ANOTHER_MODEL, "model.name=./nowhere"],
            "model.name './nowhere' is no folder",
        ),
        (
            [*ANOTHER_MODEL, "model.name=nobody/nothing"],
            "nobody/nothing is not in the cache, and no hub",
        ),
        (["--resume-from", "nowhere"], "is no folder"),
        (["--address", "127.0.0.1:1"], "nothing runs in a cluster"),
        (["--address", "127.0.0.1:1", "env_runners.num_env_runners=1"], "no cluster answers"),
        (["--address", "127.0.0.1:99999", "env_runners.num_env_runners=1"], "no cluster answers"),
        (["--address", "nohost.invalid:6379", "env_runners.num_env_runners=1"], "no cluster"),
        (["--address", "head", "env_runners.num_env_runners=1"], "has no port"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(refused, arguments, message):
    assert message in refused("tiny.toml", *arguments)
    assert message in refused("tiny.toml", *arguments, "--dry-run")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a model, one without a chat template, and one whose config is broken."""
    folder = tmp_path_factory.mktemp("models")
    save_qwen(folder / "own")
    save_qwen(folder / "plain", template=None)
    (save_qwen(folder / "broken") / "config.json").write_text("{")
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["output.dir=/proc/x"], "output.dir: cannot write into /proc"),
        (["output.dir=tiny.toml"], "output.dir: cannot write into"),
        (["callbacks=nowhere:Mine"], "No module named 'nowhere'"),
        (["training.chats=no.jsonl", "warm_start.num_steps=2"], "no.jsonl: no such file"),
        (["environment.id=AgentPEFT/DBBench-v0", "environment.kwargs={data='no.json'}"], "no.json"),
        (["environment.id=AgentPEFT/GSM8K-v0", "environment.kwargs={data='no.jsonl'}"], "no.jsonl"),
        (["evaluation.env_kwargs.num_digits=many"], "num_digits must be an integer"),
        (["warm_start.num_steps=2", "warm_start.env_kwargs.num_digits=many"], "num_digits must be"),
        (
            ["warm_start.num_steps=2", "environment.id=CartPole-v1", "environment.kwargs="],
            "no Text",
        ),
        (["lora.target_modules=['nowhere']"], "('nowhere',) names no linear layer"),
        (["lora.orthogonal_to=['nowhere']"], "lora.orthogonal_to 'nowhere' is no folder"),
        (["training.teacher=./nowhere"], "training.teacher './nowhere' is no folder"),
        (["tiny.hidden_size=16384", "tiny.num_layers=60"], "the weights alone need"),
        (["learners.num_gpus_per_learner=1000"], "the config asks for 1000 GPU(s)"),
        ([*ANOTHER_MODEL, "model.name=MODELS/plain"], "no chat template; set model.use_chat"),
        ([*ANOTHER_MODEL, "model.name=MODELS/broken"], "model.name 'MODELS/broken': "),
        (
            [*ANOTHER_MODEL, "model.name=MODELS/own", "model.chat_template_kwargs={a=1}"],
            "the chat template does not read 'a'",
        ),
    ],
)
def test_a_dry_run_finds_what_would_end_a_run_soon(refused, models, arguments, message):
    words = [word.replace("MODELS", str(models)) for word in arguments]
    line = refused("tiny.toml", *words, "--dry-run")
    assert message.replace("MODELS", str(models)) in line


def test_a_dry_run_finds_an_environment_that_cannot_begin(refused, tmp_path, monkeypatch):
    (tmp_path / "oops_env.py").write_text(
        "import gymnasium\n"
        "class Oops(gymnasium.Env):\n"
        "    observation_space = action_space = gymnasium.spaces.Text(100)\n"
        "    def reset(self, *, seed=None, options=None): raise KeyError('oops')\n"
        "gymnasium.register('Oops-v0', Oops)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    words = ("environment.id=oops_env:Oops-v0", "environment.kwargs=", "--dry-run")
    assert "raised KeyError: 'oops' (oops_env.py, line 4)" in refused("tiny.toml", *words)


def test_four_bits_without_their_package_are_refused_before_anything_starts(refused, monkeypatch):
    def find_others(**wanted):
        return (each for each in distributions(**wanted) if each.name != "bitsandbytes")

    monkeypatch.setattr("agentpeft.launch.checking.machine_checks.distributions", find_others)
    line = refused("tiny.toml", *ANOTHER_MODEL, "model.name=./nowhere", "model.dtype=nf4")
    assert "bitsandbytes is missing" in line and "pip install 'agentpeft[train,quantize]'" in line


BROKEN = {
    "empty": {},
    "no weights": {"adapter_config.json": b'{"peft_type": "LORA"}'},
    "cut settings": {"adapter_config.json": b'{"peft', "adapter_model.safetensors": b"x"},
    "a list": {"adapter_config.json": b"[1]", "adapter_model.safetensors": b"x"},
    "cut weights": {
        "adapter_config.json": b'{"peft_type": "LORA"}',
        "adapter_model.safetensors": b"\x08\0\0\0\0\0\0\0{}    ",
    },
    "another kind": {
        "adapter_config.json": b'{"peft_type": "IA3"}',
        "adapter_model.safetensors": b"\x08\0\0\0\0\0\0\0{}      ",
    },
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_adapter_is_refused_before_anything_starts(refused, tmp_path, kind):
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name, content in BROKEN[kind].items():
        (folder / name).write_bytes(content)
    line = refused("tiny.toml", "--resume-from", str(folder))
    assert "model.adapter" in line and "PEFT's format" in line


def test_a_run_without_a_checkpoint_is_not_resumed(refused, tmp_path):
    from agentpeft.policies.checkpointing.checkpoints import write_config

    run_dir = tmp_path / "outputs"
    (run_dir / "checkpoints").mkdir(parents=True)
    write_config(run_dir, Settings())
    assert "the run has no checkpoint" in refused("--resume", str(run_dir))


def test_a_cluster_that_accepts_and_says_nothing_is_no_cluster(refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        line = refused("tiny.toml", "--address", address, "env_runners.num_env_runners=1")
    assert address in line


def test_the_number_of_iterations_is_not_below_what_is_done(refused, tmp_path):
    from agentpeft.policies.checkpointing.checkpoints import (
        checkpoint_path,
        write_checkpoint,
        write_config,
    )

    run_dir, settings = tmp_path / "run", Settings()
    (run_dir / "checkpoints").mkdir(parents=True)
    write_config(run_dir, settings)
    state = {"iteration": 5, "position": 0, "num_episodes": 0, "logs": {}, "log_sha256": {}}
    state["settings"] = settings.model_dump(mode="json")
    files = {"algorithm.json": json.dumps(state).encode()}
    write_checkpoint(checkpoint_path(run_dir / "checkpoints", 5), files)
    assert "below what" in refused("--resume", str(run_dir), "training.num_iterations=3")


def test_a_data_setting_with_an_index_must_hold_two_paths(refused):
    words = ("environment.kwargs={data={tasks=1, index=2}}", "evaluation.num_tasks=0")
    line = refused("tiny.toml", *words)
    assert "data.tasks must be a path" in line
