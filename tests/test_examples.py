"""The examples: the scripts run; Ray's own check of its YAML, KubeRay's fields, the image."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import gymnasium as gym
import jsonschema
import pytest
import yaml
from known_commands import problem_of
from ray.autoscaler._private.util import prepare_config, validate_config

from agentpeft.envs import check_text_env
from agentpeft.policies.settings.algorithm_config import AlgorithmConfig

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def load(name):
    return yaml.safe_load((EXAMPLES / name).read_text("utf-8"))


def comment_commands(name):
    """Returns the commands in an example's first comment."""
    text = (EXAMPLES / name).read_text("utf-8")
    lines = re.findall(r"^#   (\S.*)$", text, re.M)
    return [shlex.split(part, comments=True) for line in lines for part in line.split("&&")]


def dockerfile():
    """Returns the instructions and their words, lines joined."""
    text = (EXAMPLES / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


@pytest.mark.parametrize(
    "name", ["ray_cluster.yaml", "rayjob.yaml", "Dockerfile", "serve.Dockerfile"]
)
def test_the_commands_in_an_example_are_known(name):
    commands = comment_commands(name)
    assert commands and not [said for words in commands if (said := problem_of(words))]


def test_ray_takes_the_cluster():
    config = prepare_config(load("ray_cluster.yaml"))
    validate_config(config)
    (node,) = config["available_node_types"].values()
    assert node["min_workers"] == len(config["provider"]["worker_ips"])
    assert any("--head" in command for command in config["head_start_ray_commands"])


def test_ray_refuses_a_cluster_with_an_unknown_field():
    config = prepare_config(load("ray_cluster.yaml")) | {"setup_command": []}
    with pytest.raises(jsonschema.ValidationError, match="setup_command"):
        validate_config(config)


def test_shell_commands_of_the_cluster_are_sound():
    config = load("ray_cluster.yaml")
    commands = config["setup_commands"] + config["head_start_ray_commands"]
    for command in commands + config["worker_start_ray_commands"]:
        subprocess.run(["bash", "-n", "-c", command], check=True)
        words = [word for word in shlex.split(command) if "=" not in word.partition("/")[0]]
        if words[0].endswith("/ray"):
            assert not problem_of(["ray", *words[1:]])


def test_the_job_has_the_fields_of_kuberays_definition():
    schema = json.loads((ROOT / "tests" / "rayjob_schema.json").read_text("utf-8"))
    job = load("rayjob.yaml")
    jsonschema.validate(job, schema)
    assert not problem_of(job["spec"]["entrypoint"].split())
    yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]["AGENTPEFT_OUTPUT_DIR"]
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == version("ray")
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = {c["image"] for g in groups for c in g["template"]["spec"]["containers"]}
    assert len(images) == 1
    job["spec"]["rayClusterSpec"]["workerGroupSpec"] = []
    with pytest.raises(jsonschema.ValidationError, match="workerGroupSpec"):
        jsonschema.validate(job, schema)


def test_mounted_volumes_are_declared_and_hold_the_outputs():
    job = load("rayjob.yaml")["spec"]
    spec = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    mounts = {m["name"]: m["mountPath"] for c in spec["containers"] for m in c["volumeMounts"]}
    assert {volume["name"] for volume in spec["volumes"]} == set(mounts)
    assert mounts["runs"] in job["runtimeEnvYAML"]


def test_what_the_image_copies_is_enough_to_install_it(tmp_path):
    copied = [words.split()[:-1] for name, words in dockerfile() if name == "COPY"]
    for name in (each for words in copied for each in words):
        source, target = ROOT / name, tmp_path / "tree" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run(
        [*command, "--outdir", str(tmp_path), str(tmp_path / "tree")], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    rooms = {name.split("/")[1] for name in names if name.startswith("agentpeft/")}
    assert rooms == {"__init__.py", "py.typed", "envs", "policies", "launch", "apps"}


def test_the_image_installs_known_extras_and_starts_a_known_command():
    steps = dockerfile()
    words = {name: text for name, text in steps if name in {"ENTRYPOINT", "CMD", "FROM"}}
    (program,) = json.loads(words["ENTRYPOINT"])
    assert program in PROJECT["scripts"]
    assert not problem_of([program, *json.loads(words["CMD"])])
    assert words["FROM"].startswith("python:3.1")
    for text in (text for name, text in steps if name == "RUN"):
        subprocess.run(["bash", "-n", "-c", text], check=True)
        if text.startswith("pip "):
            assert not problem_of(shlex.split(text))


@pytest.fixture
def scripts(monkeypatch):
    """The folder of the examples is where Python looks first."""
    monkeypatch.syspath_prepend(EXAMPLES)


def test_the_environment_of_the_examples_is_sound_and_its_reward_counts_tries(scripts):
    check_text_env(import_module("guess_env").GuessEnv())
    settings = AlgorithmConfig.from_toml(EXAMPLES / "guess.toml").to_settings()
    env = gym.make(settings.environment.id, **settings.environment.kwargs)
    env.reset(options={"task": "8"})
    turns = [env.step(guess) for guess in ("16", "4", "8")]
    assert [turn[0] for turn in turns] == ["lower", "higher", ""]
    assert [turn[1] for turn in turns] == pytest.approx([0, 0, 0.6])


def test_a_reward_of_the_examples_pays_for_new_guesses(scripts):
    env = gym.make(
        "guess_env:Mine/Guess-v0", reward={"turn_reward_fn": "guess_reward:narrows_down"}
    )
    env.reset(options={"task": "8"})
    rewards = [env.step(guess)[1] for guess in ("16", "16", "8")]
    assert rewards == pytest.approx([0.05, -0.05, 1.05])


@pytest.mark.slow
def test_the_example_trains_from_a_file_in_python(scripts, tmp_path, capsys):
    short = (
        "tiny.hidden_size=32", "tiny.num_layers=1", "warm_start.num_steps=0",
        "training.num_iterations=1", "training.num_groups=2", "training.group_size=2",
        "evaluation.num_tasks=2",
    )  # fmt: skip
    train = import_module("train_from_python").train
    checkpoint = train(EXAMPLES / "guess.toml", *short, run_dir=tmp_path / "run")
    assert (checkpoint / "adapter").is_dir()
    assert "success after: 0.0" in capsys.readouterr().out
