"""The course of a run: evaluate, iterate, save, evaluate again."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from agentpeft.launch.checking.preparation import prepare_tiny
from agentpeft.launch.reporting.alarms import AlarmLog
from agentpeft.launch.run.metric_writers import MetricWriter, open_writers, read_metrics
from agentpeft.launch.run.ray_session import ray_session
from agentpeft.launch.run.run_folder import Start, shown
from agentpeft.launch.run.standard_streams import show_progress
from agentpeft.launch.run.stop_signals import Stopped, StopSignals
from agentpeft.launch.run.summary import Pace, summarize
from agentpeft.policies.errors import WorkerLostError
from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.process_upkeep import present_objects_set_apart
from agentpeft.policies.rollout.chat_rows import read_chats
from agentpeft.policies.rollout.environments import open_stages
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.learner_group import LearnerActor

logger = logging.getLogger(__name__)
Metrics: TypeAlias = Mapping[str, float]


class RunLoop:
    """Drives an `Algorithm` to `num_iterations`, and stops where it is safe when asked to."""

    def __init__(
        self,
        algorithm: Algorithm,
        run: Start,
        writers: Sequence[MetricWriter],
        signals: StopSignals,
    ) -> None:
        """Restores the checkpoint that `run` names. Raises: CheckpointError."""
        self._algorithm = algorithm
        self._settings, self._run_dir = run.settings, algorithm.run_dir
        self._writers, self._signals = writers, signals
        self._start_s = time.monotonic()
        earlier: list[dict[str, Any]] = []
        if run.checkpoint is not None:
            algorithm.restore_from_path(run.checkpoint)
            earlier = read_metrics(self._run_dir)
            self._start_s -= sum(line.get("time/total_s") or 0.0 for line in earlier)
            logger.info("continuing from %s", shown(run.checkpoint))
        self._alarms = AlarmLog(earlier)
        self._has_loss = True
        self._interval = self._settings.output.checkpoint_interval
        self._num_epoch_tasks = (
            _count_epoch_tasks(self._settings) if self._interval == "epoch" else 0
        )

    def run(self) -> dict[str, Any]:
        """Returns the summary. Raises: Stopped, after saving the last complete iteration."""
        before = after = self._before()
        num_iterations = self._settings.training.num_iterations
        self._pace = Pace(num_iterations)
        while self._algorithm.iteration < num_iterations:
            self._iterate(is_last=self._algorithm.iteration + 1 >= num_iterations)
        self._save()
        if self._algorithm.iteration > 0:
            with self._signals.immediately():
                after = self._evaluate()
            self._write(after)
        total_s = time.monotonic() - self._start_s
        lines = read_metrics(self._run_dir)
        return summarize(self._run_dir, lines, self._algorithm.iteration, before, after, total_s)

    def _before(self) -> Metrics:
        """Returns the evaluation before all learning, which a resumed run has made already."""
        for line in read_metrics(self._run_dir) if self._algorithm.iteration else []:
            if line["train/step"] == 0:
                return {name: value for name, value in line.items() if value is not None}
        show_progress("evaluating before training")
        with self._signals.immediately():
            before = self._evaluate()
        self._write(before)
        return before

    def _iterate(self, is_last: bool) -> None:
        """Runs one iteration. Raises: Stopped, after saving the last complete one."""
        before = self._algorithm.position
        metrics = self._train()
        step, settings = self._algorithm.iteration, self._settings
        is_without_loss = math.isnan(metrics.get("train/policy_loss", 0.0))
        is_without_loss &= metrics.get("train/grad_norm") == 0
        if is_without_loss and self._has_loss:  # once, not in each of the iterations after it
            logger.info("from iteration %d: no loss, as no group has two different returns", step)
        self._has_loss = not is_without_loss
        metrics |= self._alarms.look(step, metrics)
        interval = settings.evaluation.interval
        if interval and step % interval == 0 and not is_last:
            with suppress(Stopped), self._signals.immediately():
                metrics |= self._evaluate()
        self._write(metrics | self._pace.end_iteration(step))
        if self._signals.is_stopping or self._is_due(step, before) or self._algorithm.is_best:
            self._save()
        self._signals.check()

    def _is_due(self, step: int, before: int) -> bool:
        """Whether `output.checkpoint_interval` asks for a checkpoint after an iteration.

        `before`: the position in the stream of tasks that the iteration began at.
        """
        if self._interval == "epoch":
            size = self._num_epoch_tasks
            return self._algorithm.position // size > before // size
        return self._interval > 0 and step % self._interval == 0

    def _train(self) -> dict[str, float]:
        """Returns an iteration's metrics; if it takes long, a signal abandons it."""
        try:
            with self._signals.patiently():
                return self._algorithm.train()
        except Stopped:
            if self._algorithm.iteration > 0 and not self._algorithm.is_saved:
                self._save_last_whole()
            raise

    def _save_last_whole(self) -> None:
        """Saves what was learnt before an iteration that was given up."""
        is_whole = False
        with suppress(Stopped, WorkerLostError), self._signals.patiently():
            is_whole = self._algorithm.give_up_iteration()
        if is_whole:
            self._save()
        else:
            logger.warning("what was learnt since the last checkpoint is lost with this iteration")

    def _evaluate(self) -> dict[str, float]:
        if self._settings.evaluation.num_tasks == 0:
            return {}
        return {f"eval/{name}": value for name, value in self._algorithm.evaluate().items()}

    def _write(self, metrics: Metrics) -> None:
        for writer in self._writers:
            writer.write(self._algorithm.iteration, metrics)

    def _save(self) -> None:
        """Saves what has been learnt since the last checkpoint, if anything."""
        if not self._algorithm.is_saved:
            path = self._algorithm.save_to_path()
            logger.info("saved %s", shown(path))


def _count_epoch_tasks(settings: Settings) -> int:
    """Returns how many tasks an epoch has. Raises: SettingsError where they have no end."""
    if settings.training.chats and not settings.is_rl:
        return len(read_chats(settings.training.chats))
    from agentpeft.policies.loop.task_choice import count_epoch_tasks

    (stage,) = open_stages(settings)
    with closing(stage):
        return count_epoch_tasks(settings, stage)


def run_session(
    run: Start,
    run_dir: Path,
    address: str | None,
    signals: StopSignals,
    output: TextIO | None = None,
    learner_class: type[LearnerActor] = LearnerActor,
) -> dict[str, Any]:
    """Starts or joins Ray where there are runners to place, trains, and returns the summary.

    A line per iteration goes to `output` (None: standard output). Raises: Stopped, after a
    checkpoint of what was learnt.
    """
    with ExitStack() as stack:
        with signals.immediately():
            if run.settings.env_runners.num_env_runners > 0:
                stack.callback(signals.take_back)  # Ray resets SIGTERM when it ends
                stack.enter_context(ray_session(address, run_dir))
                signals.take_back()  # Ray has set a handler of its own
            prepare_tiny(run.settings, run.checkpoint)
            show_progress("loading the model")
            writers = stack.enter_context(open_writers(run.settings, run_dir, output))
            algorithm = stack.enter_context(
                Algorithm(run.settings, run_dir, learner_class=learner_class)
            )
            loop = RunLoop(algorithm, run, writers, signals)
        stack.enter_context(present_objects_set_apart())
        return loop.run()
