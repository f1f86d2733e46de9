"""What happens to a part of a run, when, and what must hold afterwards.

A scenario follows from its seed: a part, a fault and a moment, drawn from the combinations that
make sense, and the jitter. `play` launches a run, does that to it, resumes it where it has ended,
and returns which invariants did not hold:

* The exit status is 0, 1 or 2; unless it is 0 there is one line that begins with `error: ` and no
  traceback, and standard output is JSON lines. A driver that was killed says nothing.
* The run ends within the limit, and so does all that it has started.
* It has ended well, or does so when it is resumed (begun again, where nothing was saved). Its
  lines of metrics, without times, and its last checkpoint are then those of an undisturbed run, to
  the bit; no line is missing or there twice.
* Nothing half written is left in the cache or in the run's folder.
"""

import itertools
import json
import random
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Self

from process_parts import is_running
from small_run import (
    NUM_ITERATIONS,
    STEPS,
    SmallRun,
    limit_memory,
    read_results,
    send,
    slow_down,
    stop_for,
    wait_until_gone,
)
from surroundings import DatabaseServer, SmallDisk, TwoNodes


class Part(StrEnum):
    """A process of a run. The engine of these runs is a thread of the runner."""

    DRIVER = "driver"
    RUNNER = "runner"
    LEARNER = "learner"
    RAYLET = "raylet"
    GCS = "GCS"
    NODE = "node"
    DATABASE = "database server"


class Fault(StrEnum):
    """What happens to a part."""

    KILL = "kill"
    STOP = "stop"
    SLOW = "slow"
    FULL_DISK = "full disk"
    NO_MEMORY = "no memory"


class Moment(StrEnum):
    """What the run does when it happens."""

    START = "start"
    WARM_START = "warm start"
    SAMPLING = "sampling"
    LEARNING = "learning"
    DELIVERY = "delivery"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    SHUTDOWN = "shutdown"


SENSELESS = {
    (Part.RUNNER, Fault.FULL_DISK): "it writes nothing to a disk",
    (Part.LEARNER, Fault.FULL_DISK): "it writes nothing to a disk; the driver writes checkpoints",
    (Part.GCS, Fault.FULL_DISK): "it writes its log alone, to the raylet's disk",
    (Part.NODE, Fault.FULL_DISK): "each of its processes is a part of its own",
    (Part.NODE, Fault.NO_MEMORY): "each of its processes is a part of its own",
    (Part.DATABASE, Fault.NO_MEMORY): "it ends, as when it is killed",
    (Part.RUNNER, Moment.WARM_START): "the driver makes the tiny model before runners start",
    (Part.LEARNER, Moment.WARM_START): "the driver makes the tiny model before the learner starts",
}
"""Combinations that are not drawn, and why."""
IN_RAY = ("env_runners.num_env_runners=2",)
ON_NODES = (
    "num_cpus_per_process=1",
    "fault_tolerance.placement_timeout_s=60",
)
IN_DATABASE = (
    "environment.id=AgentPEFT/DBBench-v0",
    "env_runners.max_new_tokens=16",
    "training.num_groups=8",
    "evaluation.num_tasks=8",
)
_DATABASE = """environment.kwargs={skills = ["delete", "update"], prompt = "compact", \
max_columns = 3, max_rows = 6, max_text_chars = 8, max_phrasings = 1, invent = true, \
max_turns = 2, reward = {length_cost = 0.1}, statement_timeout_s = 2, database = "DATABASE"}"""


@dataclass(frozen=True)
class Scenario:
    """What happens. `jitter` from 0 to 1 says where in the moment, `amount` how much."""

    seed: int
    part: Part
    fault: Fault
    moment: Moment
    in_ray: bool
    iteration: int
    jitter: float
    amount: float

    def __str__(self) -> str:
        where = "Ray" if self.in_ray else "serial"
        return f"{self.seed}: {self.part}, {self.fault}, {self.moment} ({where})"


def draw(seed: int, parts: Sequence[Part] = (Part.DRIVER, Part.DRIVER, *Part)) -> Scenario:
    """Returns the scenario of a seed."""
    rng = random.Random(seed)
    part = rng.choice(parts)
    possible = [
        (fault, moment)
        for fault, moment in itertools.product(Fault, Moment)
        if (part, fault) not in SENSELESS and (part, moment) not in SENSELESS
    ]
    fault, moment = rng.choice(possible)
    in_ray = part != Part.DATABASE and (part != Part.DRIVER or rng.random() < 0.2)
    iteration = rng.randrange(1, NUM_ITERATIONS)
    return Scenario(seed, part, fault, moment, in_ray, iteration, rng.random(), rng.random())


@dataclass
class Played:
    """What a scenario came to. `hit_after` counts lines of metrics and checkpoints at the fault.

    It is None where the run was over before the moment and the part were found: nothing was hit.
    """

    scenario: Scenario
    status: int | None = None
    message: str = ""
    hit_after: tuple[int, int] | None = None
    ended_s: float = 0.0
    resumed: bool = False
    violations: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """Returns it as one line."""
        scenario = self.scenario
        line = {
            "seed": scenario.seed,
            "part": scenario.part,
            "fault": scenario.fault,
            "moment": scenario.moment,
            "in_ray": scenario.in_ray,
            "hit_after": self.hit_after,
            "status": self.status,
            "message": re.sub(r"/\S*/site-packages/", "site-packages/", self.message),
            "ended_s": round(self.ended_s, 1),
            "resumed": self.resumed,
            "violations": self.violations,
        }
        return json.dumps(line)


@dataclass(frozen=True)
class Undisturbed:
    """What a run comes to when nothing happens, and how long its moments are here."""

    results: dict[str, Any]
    total_s: float
    sample_s: float
    learn_s: float
    deliver_s: float


class _Stage:
    """A run with all that it stands on; a context manager that ends whatever is left of it."""

    def __init__(self, part: Part, in_ray: bool, fault: Fault | None = None) -> None:
        with ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="c-", ignore_cleanup_errors=True)
            self.folder = Path(stack.enter_context(folder))
            self.run, self.words = SmallRun(self.folder), list(IN_RAY if in_ray else ())
            self.disk = self.server = self.nodes = None
            if fault == Fault.FULL_DISK:
                name = {Part.DRIVER: "runs", Part.DATABASE: "data"}.get(part, "r")
                (self.folder / name).mkdir(exist_ok=True)
                self.disk = stack.enter_context(closing(SmallDisk(self.folder / name)))
            if part == Part.DATABASE:
                self.server = DatabaseServer(self.folder / "data" / "mysql")
                stack.enter_context(closing(self.server))
                self.words += [*IN_DATABASE, _DATABASE.replace("DATABASE", self.server.url)]
            if part == Part.NODE:
                self.nodes = stack.enter_context(closing(TwoNodes(self.folder)))
                self.run.others = self.nodes.machinery
                self.words += ON_NODES
            stack.callback(self.run.end)
            self._running = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    @property
    def cluster(self) -> list[str]:
        """The words that name the cluster, where the run joins one."""
        return ["--address", self.nodes.address] if self.nodes else []

    def find(self, part: Part) -> list[int]:
        """Returns the processes of a part, none where it has not been started yet."""
        held = self.server or self.nodes
        return held.pids() if held else self.run.find(part)

    def mend(self) -> None:
        """Takes the fault away from what the run stands on."""
        if self.disk is not None:
            self.disk.empty()
        if self.server is not None:
            self.server.mend()


@cache
def undisturbed(in_database: bool) -> Undisturbed:
    """Runs the run as it is, once."""
    with _Stage(Part.DATABASE if in_database else Part.DRIVER, in_ray=False) as stage:
        run = stage.run
        run.start_new(*stage.words)
        if run.wait(300) != 0 or run.run_dir is None:
            raise AssertionError("\n".join(run.errors()))
        total_s = time.monotonic() - run.start_s
        lines = list(map(json.loads, (run.run_dir / "metrics.jsonl").read_text().splitlines()))
        seconds = [lines[3][f"time/{name}_s"] for name in ("sample", "learn", "broadcast")]
        return Undisturbed(read_results(run.run_dir), total_s, *seconds)


def play(scenario: Scenario) -> Played:
    """Plays a scenario; what is left of it afterwards is ended."""
    played, calm = Played(scenario), undisturbed(scenario.part == Part.DATABASE)
    with _Stage(scenario.part, scenario.in_ray, scenario.fault) as stage:
        _disturb(stage, played, calm)
        stage.mend()
        _go_on(stage, played, calm)
    return played


def _disturb(stage: _Stage, played: Played, calm: Undisturbed) -> None:
    scenario, run = played.scenario, stage.run
    limit_s = (120 if scenario.in_ray else 60) + 4 * calm.total_s
    run.start_new(*stage.words, *stage.cluster)
    pids = _await_moment(stage, scenario, calm)
    hit_s = time.monotonic()
    played.hit_after = None if run.is_over or not pids else (run.num_measured, run.num_checkpoints)
    if scenario.fault == Fault.KILL:
        send(pids, signal.SIGKILL)
    elif scenario.fault == Fault.STOP and scenario.part == Part.DRIVER:
        stop_for(pids, 5 * scenario.amount)
    elif scenario.fault == Fault.STOP:
        send(pids, signal.SIGSTOP)
    elif scenario.fault == Fault.SLOW:
        slow_down(run, pids, 10)
    elif scenario.fault == Fault.NO_MEMORY:
        limit_memory(pids, scenario.amount)
    elif stage.disk is not None:
        stage.disk.fill(int(2**16 * scenario.amount))
    if stage.nodes and scenario.fault != Fault.SLOW:
        stage.nodes.add()
    played.status = run.wait(limit_s)
    played.ended_s = time.monotonic() - hit_s
    send(pids, signal.SIGCONT)
    if played.status is None:
        played.violations.append(f"has not ended after {limit_s:.0f} s")
        run.end()
    elif not wait_until_gone(run, 60):
        played.violations.append(f"left running: {run.end()}")
    played.violations += _judge_end(run, played)


def _go_on(stage: _Stage, played: Played, calm: Undisturbed) -> None:
    """Resumes a run that has ended, and compares what it comes to with an undisturbed one."""
    run = stage.run
    if played.status != 0:
        played.resumed = run.num_checkpoints > 0
        if played.resumed:
            run.start("--resume", str(run.run_dir), *stage.cluster)
        else:
            run.forget()
            run.start_new(*stage.words, *stage.cluster)
        status = run.wait(120 + 4 * calm.total_s)
        if status != 0:
            last = run.errors()[-1:]
            played.violations.append(f"exit status {status} when it goes on: {last}")
            return
        if not wait_until_gone(run, 60):
            played.violations.append(f"left running after it has gone on: {run.end()}")
    results = read_results(run.run_dir)
    steps = [line["train/step"] for line in results["metrics"]]
    if steps != STEPS:
        played.violations.append(f"the steps of the metrics are {steps}")
    elif differing := [name for name in calm.results if results[name] != calm.results[name]]:
        metrics = [
            (name, value, own.get(name))
            for own, line in zip(results["metrics"], calm.results["metrics"], strict=True)
            for name, value in line.items()
            if own.get(name) != value
        ]
        played.violations.append(f"other results than an undisturbed run's: {differing} {metrics}")
    if half := run.half_written():
        played.violations.append(f"half written files are left: {half}")


def _judge_end(run: SmallRun, played: Played) -> Iterator[str]:
    """Yields what is wrong with how the command ended."""
    errors, scenario = run.errors(), played.scenario
    said = [line for line in errors if line.startswith("error: ")]
    played.message = said[-1] if said else ""
    is_killed = scenario.part == Part.DRIVER and scenario.fault == Fault.KILL
    if is_killed and played.status == -signal.SIGKILL:
        return
    if played.status not in (0, 1, 2, None):
        yield f"exit status {played.status}: {errors[-2:]}"
    if played.status in (1, 2) and (len(said) != 1 or errors[-1] != said[0]):
        yield f"not one line of message, but {errors[-5:]}"
    first = next((i for i, line in enumerate(errors) if "Traceback" in line), None)
    if first is not None:
        yield f"a traceback: {errors[max(first - 5, 0) : first + 40]}"
    if not all(line.startswith("{") for line in run.printed()):
        yield "what is no JSON line on standard output"


def _await_moment(stage: _Stage, scenario: Scenario, calm: Undisturbed) -> list[int]:
    """Waits for a scenario's moment and its part; returns the part's processes.

    The moment is told by the files that the run writes, and from these on by the seconds that an
    undisturbed run has taken.
    """
    run, moment, scale = stage.run, scenario.moment, calm.total_s * (2 if scenario.in_ray else 1)
    after_s = {
        Moment.START: (0, scale * (0.6 if scenario.part == Part.DRIVER else 0.1)),
        Moment.WARM_START: (0, 0.25 * calm.total_s),
        Moment.SAMPLING: (0, calm.sample_s),
        Moment.LEARNING: (calm.sample_s, calm.learn_s),
        Moment.DELIVERY: (calm.sample_s + calm.learn_s, calm.deliver_s),
        Moment.CHECKPOINT: (0, 0.02),
        Moment.EVALUATION: (0, calm.sample_s / 4),
        Moment.SHUTDOWN: (0, 0.5 if not scenario.in_ray else 3),
    }
    pids: list[int] = []
    while not run.is_over and not (_has_come(run, scenario) and pids):
        pids = pids or stage.find(scenario.part)
        time.sleep(0.001)
    begin_s, length_s = after_s[moment]
    time.sleep(begin_s + length_s * scenario.jitter)
    is_there = pids and all(map(is_running, pids))
    return pids if is_there else stage.find(scenario.part)  # looking takes longer than a moment


def _has_come(run: SmallRun, scenario: Scenario) -> bool:
    moment, step = scenario.moment, scenario.iteration
    if moment == Moment.START:
        return True
    if moment == Moment.WARM_START:
        starts_ray = scenario.in_ray and scenario.part != Part.NODE
        return "started Ray" in run.log if starts_ray else run.run_dir is not None
    if moment == Moment.CHECKPOINT:
        return run.num_measured > step
    if moment == Moment.EVALUATION:
        return run.num_checkpoints == NUM_ITERATIONS
    if moment == Moment.SHUTDOWN:
        return run.num_measured == len(STEPS)
    return run.num_checkpoints >= step
