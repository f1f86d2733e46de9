"""How a run ends when it is told to, at any moment, and when nobody reads what it prints."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_parts import children_of, read_processes, seconds_until_gone

from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.policies.checkpointing.checkpoints import list_checkpoints

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = """
experiment = "tiny"
environment = {id = "loud:Loud-v0", kwargs = {num_digits = 1, prompt = "compact"}}
num_threads = 1
tiny = {hidden_size = 32, num_layers = 2}
warm_start = {num_steps = 0}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 100000, num_groups = 4, group_size = 2}
evaluation = {num_tasks = 4}
output = {checkpoint_interval = 1000, loggers = ["episodes"], num_checkpoints_kept = 1}
"""
LOUD = """
import contextlib
import os
import gymnasium
from agentpeft.envs.arithmetic.env import ArithmeticEnv

class Loud(ArithmeticEnv):
    def step(self, action):
        print("so loud")
        with contextlib.suppress(OSError):  # nobody may read it
            os.write(1, b"as loud as any child process\\n")
        return super().step(action)

gymnasium.register("Loud-v0", Loud)
"""
SLOW = """
import os
import time
import gymnasium
from agentpeft.envs.arithmetic.env import ArithmeticEnv

class Slow(ArithmeticEnv):
    def step(self, action):
        while os.path.exists("slow"):
            time.sleep(0.1)
        return super().step(action)

gymnasium.register("Slow-v0", Slow)
"""
RAY = "env_runners.num_env_runners=1"
VLLM = (
    "env_runners.engine=vllm",
    "env_runners.kv_cache_gib=0.25",
    "tiny.hidden_size=64",
    "env_runners.max_new_tokens=1000",
)
LONG = ("training.num_groups=500", "training.group_size=8", "evaluation.num_tasks=2")
MOST_S = 50.0
"""Five times the ten seconds that it may take on an idle machine."""


@pytest.fixture(autouse=True)
def hang_ups():
    """Signals that end a process do so in those that are started, also where pytest has `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def start(tmp_path):
    """Starts the command in a session of its own, so that its whole foreground can be signalled."""
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "loud.py").write_text(LOUD, encoding="utf-8")
    started = []

    def run(*arguments, prefix=(), **streams):
        command = [*prefix, sys.executable, str(ROOT / "launch/train.py"), "tiny.toml", *arguments]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        started.append(
            subprocess.Popen(
                command, cwd=tmp_path, env=env, text=True, start_new_session=True, **pipes
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def run_of(tmp_path):
    return next(iter(tmp_path.glob("outputs/tiny/*")), tmp_path)


def wait_for(condition, process):
    for _ in range(3000):
        if condition():
            return
        if process.poll() is not None:
            raise AssertionError(f"it has ended: {process.communicate()}")
        time.sleep(0.05)
    raise TimeoutError


def wait_for_iterations(tmp_path, process, number=2):
    wait_for(lambda: len(read_metrics(run_of(tmp_path))) > number, process)


def newest_step(tmp_path):
    (checkpoint,) = list_checkpoints(run_of(tmp_path) / "checkpoints")
    return int(checkpoint.name[-6:])


@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, start, signum):
    process = start()
    wait_for_iterations(tmp_path, process)
    process.send_signal(signum)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    last = errors.splitlines()[-1]
    assert last == (
        f"stopped by {signum.name}; continue with: agentpeft train --resume "
        f"outputs/tiny/{run_of(tmp_path).name}"
    )
    steps = [json.loads(line)["step"] for line in output.splitlines()]
    assert steps == list(range(len(steps))) and "so loud" in errors
    assert newest_step(tmp_path) == steps[-1]


@pytest.mark.parametrize(
    "overrides", [(), pytest.param((RAY,), marks=pytest.mark.long)], ids=["one process", "Ray"]
)
@pytest.mark.parametrize(
    "signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_an_iteration_that_takes_long_is_given_up_and_the_one_before_saved(
    tmp_path, start, signum, overrides
):
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    process = start("environment.id=slow:Slow-v0", *overrides)
    wait_for_iterations(tmp_path, process)
    (tmp_path / "slow").touch()
    time.sleep(1)
    start_s = time.monotonic()
    process.send_signal(signum)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signum and time.monotonic() - start_s < MOST_S
    assert f"{signum.name}: given up what took longer than 3 s" in errors
    last = json.loads(output.splitlines()[-1])["step"]
    assert newest_step(tmp_path) == last > 0
    assert "continue with: agentpeft train --resume" in errors.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("runners", ["0", "1"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_vllm_samples_is_obeyed_soon(vllm, tmp_path, start, signum, runners):
    process = start(*VLLM, *LONG, f"env_runners.num_env_runners={runners}")
    wait_for(lambda: read_metrics(run_of(tmp_path)), process)
    time.sleep(3)
    start_s = time.monotonic()
    process.send_signal(signum)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 128 + signum and time.monotonic() - start_s < MOST_S
    assert errors.splitlines()[-1].startswith(f"stopped by {signum.name}; ")


@pytest.mark.parametrize(
    ("signum", "part"),
    [
        (signal.SIGINT, "the warm start"),
        (signal.SIGTERM, "the first evaluation"),
        pytest.param(signal.SIGTERM, "the warm start", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "the first evaluation", marks=pytest.mark.long),
    ],
)
def test_a_signal_in_what_comes_before_learning_is_obeyed_at_once(tmp_path, start, signum, part):
    if part == "the warm start":
        process = start("warm_start.num_steps=100000")
        wait_for(lambda: list(tmp_path.glob("outputs/tiny/*/logs/train.log")), process)
        time.sleep(5)
    else:
        process = start("evaluation.num_tasks=100000")
        wait_for(lambda: list(tmp_path.glob("outputs/tiny/*/checkpoints")), process)
        time.sleep(2)
    start_s = time.monotonic()
    process.send_signal(signum)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signum and time.monotonic() - start_s < MOST_S
    assert errors.splitlines()[-1] == f"stopped by {signum.name}; there was nothing to save yet"


def test_nohup_holds_and_a_second_signal_ends_at_once_with_a_word(tmp_path, start):
    process = start("training.num_groups=3000", prefix=["nohup"])
    wait_for(lambda: read_metrics(run_of(tmp_path)), process)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert re.findall("SIG.*", errors) == [  # the environment may be in the middle of a line
        "SIGTERM: stopping after this iteration; a second signal exits at once",
        "SIGTERM: stopped at once, without waiting for what was still to be saved",
    ]


@pytest.mark.long
def test_one_stop_that_arrives_twice_is_one(tmp_path, start):
    process = start("training.num_groups=300")
    wait_for_iterations(tmp_path, process, 1)
    for _ in range(2):  # as `timeout` does, to the process and to its group
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    process.communicate(timeout=100)
    assert process.returncode == 143
    assert newest_step(tmp_path) > 0


@pytest.mark.parametrize(
    "streams",
    [
        pytest.param("stdout", marks=pytest.mark.long),
        pytest.param("both", marks=pytest.mark.long),
        "full",
    ],
)
def test_a_run_whose_lines_nobody_reads_goes_on(tmp_path, start, streams):
    few = "training.num_iterations=20"
    if streams == "full":
        with Path("/dev/full").open("w") as full:
            process = start(few, stdout=full)
    else:
        process = start(few, **({"stderr": subprocess.STDOUT} if streams == "both" else {}))
        process.stdout.close()
        process.stdout = None
    errors = "" if streams == "both" else process.stderr.read()
    assert process.wait(60) == 0
    assert [line["train/step"] for line in read_metrics(run_of(tmp_path))] == [*range(21), 20]
    assert newest_step(tmp_path) == 20
    log = (run_of(tmp_path) / "logs" / "train.log").read_text()
    for text in (log, errors) if errors else (log,):
        assert text.count("standard output cannot be written") == 1
        assert "Traceback" not in text and "Exception" not in text


@pytest.mark.long
@pytest.mark.parametrize("part", ["gcs_server", "ray::LearnerActor"])
def test_sigterm_while_ray_or_its_actors_start_says_so(tmp_path, start, part):
    process = start(RAY)

    def is_there():
        own = set(children_of(process.pid))
        return any(part in text for pid, text in read_processes("cmdline") if pid in own)

    wait_for(is_there, process)
    process.terminate()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    assert errors.splitlines()[-1] == "stopped by SIGTERM; there was nothing to save yet"


@pytest.mark.long
def test_a_terminal_that_hangs_up_on_all_of_ray_loses_nothing(tmp_path, start, ray_parent):
    process = start(RAY)
    wait_for_iterations(tmp_path, process)
    os.killpg(process.pid, signal.SIGHUP)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 129
    steps = [json.loads(line)["step"] for line in output.splitlines()]
    assert newest_step(tmp_path) == steps[-1] > 0
    assert "so loud" in errors  # Ray hands on what its workers print
    assert not list(ray_parent.iterdir())


def test_a_killed_run_leaves_nothing_of_its_ray(tmp_path, start, ray_parent):
    process = start(RAY)
    wait_for_iterations(tmp_path, process, 0)
    own = children_of(process.pid)
    assert len(own) > 5 and list(ray_parent.iterdir())
    process.kill()
    process.wait()
    seconds_until_gone(own, 45)  # Ray's agents alone: 60
    assert not list(ray_parent.iterdir())
