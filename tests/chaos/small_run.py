"""A training run of a second, launched as a user does, watched, and disturbed while it runs."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from process_parts import children_of, is_running, processes_of, read_processes

ROOT = Path(__file__).parents[2]
NUM_ITERATIONS = 4
CONFIG = f"""
experiment = "chaos"
deterministic = true
environment = {{kwargs = {{num_digits = 1, prompt = "compact", reward = {{length_cost = 0.1}}}}}}
num_threads = 1
tiny = {{hidden_size = 32, num_layers = 1}}
lora = {{rank = 2, alpha = 4.0}}
warm_start = {{num_steps = 60, batch_size = 16, lr = 1e-2}}
env_runners = {{num_env_runners = 0, max_new_tokens = 4}}
evaluation = {{num_tasks = 16, interval = 2}}
output = {{loggers = ["episodes"], checkpoint_interval = 1, num_checkpoints_kept = 10}}
fault_tolerance = {{env_runner_health_probe_timeout_s = 5, env_runner_restore_timeout_s = 60}}

[training]
algorithm = "reinforce"
num_iterations = {NUM_ITERATIONS}
num_groups = 16
group_size = 4
lr = 1e-2
"""
_VARYING = ("time/", "fault/", "train/mismatch_", "sample/num_faults", "sample/num_retries")
STEPS = [0, 1, 2, 3, 4, 4]
"""The steps of the lines of metrics: both evaluations, and the iterations between them."""


class SmallRun:
    """The folders of a run, and the process of the command that runs it now."""

    def __init__(self, folder: Path) -> None:
        """`folder` has a short path: Ray puts sockets below it."""
        self.folder, self._outputs = folder, folder / "runs"
        self._outputs.mkdir()
        (folder / "r").mkdir()
        (folder / "small.toml").write_text(CONFIG, encoding="utf-8")
        self.others: Callable[[], Collection[int]] = tuple
        """Returns the processes that are there before the run, and stay."""

    def start(self, *arguments: str) -> None:
        """Starts the command with these words."""
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as err:
            self._driver = subprocess.Popen(
                [sys.executable, str(ROOT / "launch" / "train.py"), *arguments],
                cwd=self.folder,
                env=make_environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.start_s = time.monotonic()

    def start_new(self, *overrides: str) -> None:
        """Starts a run from its beginning."""
        self.start("small.toml", f"output.dir={self._outputs}", *overrides)

    def wait(self, limit_s: float) -> int | None:
        """Returns the exit status, None where there is none after `limit_s` seconds."""
        try:
            return self._driver.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    @property
    def is_over(self) -> bool:
        """Whether the command has ended."""
        return self._driver.poll() is not None

    @property
    def run_dir(self) -> Path | None:
        """The run's folder, None before it is made."""
        return next(self._outputs.glob("chaos/*"), None)

    @property
    def num_checkpoints(self) -> int:
        """How many checkpoints are whole."""
        return len(list(self._outputs.glob("chaos/*/checkpoints/checkpoint-*")))

    @property
    def num_measured(self) -> int:
        """How many lines of metrics there are."""
        paths = self._outputs.glob("chaos/*/metrics.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in paths)

    @property
    def log(self) -> str:
        """The run's log."""
        return "".join(path.read_text() for path in self._outputs.glob("chaos/*/logs/train.log"))

    def errors(self) -> list[str]:
        """Returns the lines on standard error."""
        return (self.folder / "err").read_text(errors="replace").splitlines()

    def printed(self) -> list[str]:
        """Returns the lines on standard output."""
        return (self.folder / "out").read_text(errors="replace").splitlines()

    def processes(self) -> dict[int, str]:
        """Returns what the run has started and runs, by process id with the command line."""
        found = processes_of(self.folder / "cache")
        return {pid: text for pid, text in found.items() if pid not in self.others()}

    def find(self, part: str) -> list[int]:
        """Returns the processes of a part, none where it has not been started yet."""
        if part == "driver":
            return [self._driver.pid]
        own = set(children_of(self._driver.pid))
        commands = {pid: text for pid, text in read_processes("cmdline") if pid in own}
        actors = {"runner": "ray::EnvRunnerActor", "learner": "ray::LearnerActor"}
        name = ({"raylet": "/raylet/raylet", "GCS": "/gcs/gcs_server"} | actors)[part]
        return [pid for pid, text in commands.items() if name in text.partition("\0")[0]]

    def half_written(self) -> list[str]:
        """Returns the temporary names in the cache and in the run's folder."""
        roots = (self.folder / "cache", self._outputs)
        return [str(path.relative_to(self.folder)) for r in roots for path in r.rglob(".*")]

    def forget(self) -> None:
        """Removes what the run has written, so that it can be begun again."""
        for path in self._outputs.iterdir():
            shutil.rmtree(path)

    def end(self) -> list[str]:
        """Ends whatever is left of the run; returns what that was."""
        left = self.processes()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._driver.wait()
        return [text.replace("\0", " ")[:100] for text in left.values()]


def make_environment(folder: Path) -> dict[str, str]:
    """Returns the variables of all processes of a run, by which they are found again."""
    own = {"AGENTPEFT_CACHE": "cache", "RAY_TMPDIR": "r", "TMPDIR": "."}
    env = os.environ | {name: str(folder / path) for name, path in own.items()}
    env.pop("RAY_ADDRESS", None)
    return env | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}


def wait_until_gone(run: SmallRun, limit_s: float) -> bool:
    """Waits for all processes of a run to end by themselves; returns whether they did."""
    deadline_s = time.monotonic() + limit_s
    while run.processes():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)
    return True


def read_results(run_dir: Path, iterations: Iterable[int] = (NUM_ITERATIONS,)) -> dict[str, Any]:
    """Returns what a run has come to: its metrics, and its checkpoints' hashes.

    Of the metrics those are left out that need not be the same: times, counts of faults, retries
    and restarts, and how the engine's rounding differs from the learner's, which depends on what
    it decodes together.
    Raises: OSError, ValueError where something of it is missing or is no JSON.
    """
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    found: dict[str, Any] = {
        "metrics": [
            {name: value for name, value in line.items() if not name.startswith(_VARYING)}
            for line in lines
        ]
    }
    for iteration in iterations:
        folder = run_dir / "checkpoints" / f"checkpoint-{iteration:06d}"
        for name in ("learner.pt", "adapter/adapter_model.safetensors"):
            path = folder / name
            found[f"{folder.name}/{name}"] = sha256(path.read_bytes()).hexdigest()
    return found


def stop_for(pids: Sequence[int], seconds: float) -> None:
    """Stops processes, and lets them go on after so long."""
    send(pids, signal.SIGSTOP)
    time.sleep(seconds)
    send(pids, signal.SIGCONT)


def slow_down(run: SmallRun, pids: Sequence[int], seconds: float) -> None:
    """Lets processes run a fifth of the time, until they end."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s and not run.is_over and any(map(is_running, pids)):
        stop_for(pids, 0.04)
        time.sleep(0.01)


def limit_memory(pids: Sequence[int], more_mib: float) -> None:
    """Lets processes have so much more memory than they have, and no more."""
    for pid in pids:
        with suppress(ProcessLookupError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + int(more_mib * 2**20)
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


def send(pids: Sequence[int], signum: signal.Signals) -> None:
    """Sends a signal to those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
