"""The command `agentpeft`: its help, its completion, and that it runs the scripts' functions."""

import errno
import json
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from tiny_run import TINY

from agentpeft.launch.cli import COMMANDS, main
from agentpeft.launch.run.command_line import CommandLine

ROOT = Path(__file__).parents[2]
NO_TASKS = ["evaluation.interval=0", "evaluation.num_tasks=0"]
DRY, SHARED = ["train", "arithmetic_add", "--dry-run"], "env_runners.shared_engines=an.app:sweep"
RUN = "import sys\n{before}\nfrom agentpeft.launch.cli import main\nsys.exit(main({words!r}))"


def run(*words, before=""):
    command = [sys.executable, "-c", RUN.format(before=before, words=list(words))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_entry_point_is_this_function():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["scripts"]["agentpeft"].partition(":")
    assert vars(import_module(module))[name] is main


def test_help_names_all_commands_without_loading_them():
    loaded = "{'torch', 'agentpeft.launch.train'} & set(sys.modules)"
    done = run(before=f"import atexit; atexit.register(lambda: print({loaded}))")
    assert done.returncode == 0 and done.stdout.endswith("set()\n")
    assert all(f"│ {name} " in done.stdout for name in COMMANDS)


def test_every_command_has_its_own_help_that_needs_no_torch():
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom agentpeft.launch.cli import COMMANDS, main\n"
        "assert all(main([name, '--help']) == 0 for name in COMMANDS)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for name, shown in zip(COMMANDS, done.stdout.split("Usage: agentpeft ")[1:], strict=True):
        assert shown.startswith(f"{name} [OPTIONS]") and "─ Options ─" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "quickstrat"], "error: unknown config 'quickstrat'; did you mean"),
        (["merge", "nowhere"], "error: nowhere is no adapter"),
        (["evaluate", "quickstart", *NO_TASKS], "nothing to play"),
        (["report", "nowhere"], "error: no run in 'nowhere'"),
        (["doctor", "--what"], "error: no such option: --what; see agentpeft doctor --help\n"),
        (["prepare-data", "convert", "nowhere.json"], "nowhere.json"),
        (["estimate", *DRY[1:2], "env_runners.engine=vllm", SHARED], "error: estimate: how fast"),
        (["engines", "arithmetic_add"], "error: runs share engines in a cluster: name one"),
        (["trian"], "error: no such command 'trian'. Did you mean 'train'?"),
    ],
)
def test_it_runs_the_scripts_own_functions(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.slow
def test_output_that_nobody_reads_ends_a_command_silently():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "agentpeft.launch.cli", "train", "--dry-run"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


CLOSED = [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize(
    ("words", "status"),
    [("completion bash", 0), ("nothing", 2)],
)
def test_a_stream_that_is_closed_from_the_start_is_no_error(words, status, closed, tmp_path):
    command = f"{sys.executable} -m agentpeft.launch.cli {words} {closed}; exit $?"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == status and b"Traceback" not in done.stderr
    assert bool(done.stdout) == (status == 0 and " >&-" not in f" {closed}")
    assert (b"error: " in done.stderr) == (status == 2 and "2>&-" not in closed)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_run_with_closed_streams_goes_to_its_end(closed, tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    env = os.environ | {"AGENTPEFT_CACHE": str(tmp_path / "cache")}
    command = f"{sys.executable} -m agentpeft.launch.cli train tiny.toml {closed}; exit $?"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, check=False, cwd=tmp_path, env=env
    )
    (run_dir,) = tmp_path.glob("outputs/tiny/*")
    assert (done.returncode, done.stdout) == (0, b"")
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["train/step"] for line in lines] == [0, 1, 2, 2]


def test_a_broken_pipe_that_is_not_the_output_is_said(capfd):
    command_line = CommandLine()

    @command_line.add()
    def fail() -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    assert command_line([]) == 1
    assert capfd.readouterr().err == "error: output: Broken pipe\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("lib.so: failed to map segment from shared object"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_machine_without_memory_is_one_line(error, capsys):
    main = CommandLine("greedy")

    @main.add()
    def take() -> int:
        raise error

    assert main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: no memory is left on this machine: ")
    assert said.count("\n") == 1


def test_a_bug_keeps_its_traceback():
    main = CommandLine("buggy")

    @main.add()
    def fail() -> int:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        main([])


def test_a_missing_package_is_said(tmp_path):
    (tmp_path / "adapter_config.json").touch()
    done = run("merge", str(tmp_path), before="sys.modules['torch'] = None")
    assert done.returncode == 2
    assert done.stderr.endswith("pip install 'agentpeft[train]'\n") and "torch" in done.stderr


@pytest.fixture(scope="module")
def completion(tmp_path_factory):
    """Returns what bash offers after some words."""
    done = run("completion", "bash")
    assert done.returncode == 0, done.stderr
    folder = tmp_path_factory.mktemp("bash")
    (folder / "completion").write_text(done.stdout, "utf-8")
    command = folder / "agentpeft"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m agentpeft.launch.cli "$@"\n', "utf-8")
    command.chmod(0o755)

    def complete(*words):
        script = f"source {folder}/completion; COMP_WORDS=({' '.join(words)})\n"
        script += f"COMP_CWORD={len(words) - 1}; _agentpeft_completion {command}\n"
        script += 'echo "${COMPREPLY[@]}"'
        shell = ["bash", "-c", script]
        return subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split()

    return complete


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["agentpeft", "ev"], ["evaluate"]),
        (["agentpeft", "evaluate", "--mo"], ["--modes"]),
        (["agentpeft", "evaluate", "--modes", "m"], ["merged"]),
        (["agentpeft", "prepare-data", "gen"], ["generate"]),
        (["agentpeft", "prepare-data", "generate", "--num-t"], ["--num-tasks"]),
        (["agentpeft", "train", "--resume"], ["--resume", "--resume-from"]),
    ],
)
def test_bash_completes_commands_options_and_choices(completion, words, offered):
    assert completion(*words) == offered
