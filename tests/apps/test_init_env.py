"""The files that `agentpeft init-env` writes, and that they work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentpeft.apps.init_env.init_env import main

ROOT = Path(__file__).parents[2]
SHORT = ["warm_start.num_steps=5", "training.num_iterations=1", "training.num_groups=2"]
SHORT += ["evaluation.num_tasks=4", "num_threads=1"]


def test_what_it_writes_has_the_name_that_was_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["games/caps_env.py"]) == 0
    written = sorted(path.name for path in (tmp_path / "games").iterdir())
    assert written == ["caps_env.py", "caps_env.toml", "test_caps_env.py"]
    assert capsys.readouterr().out.endswith("next: agentpeft train games/caps_env.toml\n")
    assert "class CapsEnv(" in (tmp_path / "games/caps_env.py").read_text("utf-8")
    for path in (tmp_path / "games").iterdir():
        text = path.read_text("utf-8")
        assert "sort_env" not in text and "SortEnv" not in text and "init_env" not in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-env.py", "expected a Python file such as my_env.py, got 'my-env.py'"),
        ("my_env", "expected a Python file such as my_env.py, got 'my_env'"),
        ("class.py", "expected a Python file such as my_env.py, got 'class.py'"),
        ("json.py", "there is a module 'json' already: choose another name"),
        ("mine.py", "test_mine.py is there already: choose another name"),
    ],
)
def test_a_name_that_cannot_be_taken_leaves_nothing(name, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("test_mine.py").write_text("mine", "utf-8")
    assert main([name]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
    assert Path("test_mine.py").read_text("utf-8") == "mine"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_it_writes_passes_its_test_and_trains_and_plays_from_any_folder(tmp_path):
    """In Ray's workers too; the run knows where its environment is."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "AGENTPEFT_CACHE": str(tmp_path / "cache")}

    def run(*command, folder="."):
        (tmp_path / folder).mkdir(exist_ok=True)
        words = [sys.executable, "-P", "-m", *command]
        done = subprocess.run(
            words,
            cwd=tmp_path / folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    agentpeft = "agentpeft.launch.cli"
    run(agentpeft, "init-env", "games/my_env.py")
    run("pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "games/test_my_env.py")
    train = [agentpeft, "train", "../games/my_env.toml", "env_runners.num_env_runners=1", *SHORT]
    summary = json.loads(run(*train, folder="runs")[-1])
    adapter = tmp_path / "runs" / summary["adapter"]
    lines = run(agentpeft, "play", str(adapter.parents[2]), folder="elsewhere")
    assert "MyEnv-v0" in lines[0] and lines[-1] == "left; turns played: 0"
