"""`Algorithm`: a run. It trains iteration by iteration, evaluates, saves and restores.

`Algorithm._iterate` is one iteration, and reads top to bottom. What it calls is in one place each:

    batches.next     `loop.batches`: groups of episodes, played ahead where a lag is allowed
    learners.update  `learning.learner`: advantages, passes, optimizer steps
    deliver          `delivery.deliver`: the adapter is packed, sent and proven
    _record          metrics, the curriculum's results, the run's files and callbacks
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agentpeft.policies.checkpointing.run_checkpoints import RunCheckpoints
from agentpeft.policies.checkpointing.run_logs import SESSIONS, append_episodes
from agentpeft.policies.delivery.deliver import deliver
from agentpeft.policies.errors import TrainingError, WorkerLostError
from agentpeft.policies.loop.batches import TrainingBatches, check_world
from agentpeft.policies.loop.curriculum import Curriculum
from agentpeft.policies.loop.evaluation import (
    compute_skill_metrics,
    compute_success_metrics,
    warn_unless_held_out,
)
from agentpeft.policies.messages import Ref
from agentpeft.policies.rollout.environments import say_limit
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actors, missing
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerActor, EnvRunnerGroup

if TYPE_CHECKING:  # only where a run has callbacks, or learns by imitation
    from agentpeft.policies.loop.callbacks import Callbacks
    from agentpeft.policies.loop.imitation import OracleBatches

logger = logging.getLogger(__name__)
_FAULTS = (
    "num_failed_deliveries",
    "num_env_runner_restarts",
    "num_learner_restarts",
    "num_redrawn_groups",
    "num_drained_env_runners",
    "num_joined_env_runners",
)
_ADVICE = ": resume the run"
_MAX_LEARNER_RESTARTS = 3  # in a whole run: deaths that repeat share a cause, such as memory
_TIMES = ("time/sample_s", "time/learn_s", "time/broadcast_s")


class Algorithm:
    """Trains an adapter with env runners and learners; a context manager that stops them.

    An iteration learns from a batch of `training.num_groups` groups, which `curriculum` chooses.
    All randomness follows from the seed and from counters that are saved, so that a checkpoint
    needs only the learner's state, the curriculum's and these.
    """

    _batches: "TrainingBatches | OracleBatches"

    def __init__(
        self,
        settings: Settings,
        run_dir: Path,
        *,
        env_runner_class: type[EnvRunnerActor] = EnvRunnerActor,
        learner_class: type[LearnerActor] = LearnerActor,
        callbacks: "Callbacks | None" = None,
    ) -> None:
        """Starts everything and delivers the first adapter; a failure leaves nothing running.

        Pass subclasses to extend the actors. `callbacks` None: those that the settings name.
        """
        self.settings, self.run_dir = settings, run_dir
        if callbacks is None and settings.callbacks is not None:
            from agentpeft.policies.loop.callbacks import find_class, make_callbacks

            callbacks = make_callbacks(find_class(settings.callbacks))
        self._callbacks = callbacks
        self._env_runner_class, self._learner_class = env_runner_class, learner_class
        self._checkpoints = RunCheckpoints(run_dir, settings)
        warn_unless_held_out(settings)
        self.iteration = self._num_episodes = 0
        self._faults = Counter(dict.fromkeys(_FAULTS, 0))
        self._interrupted: tuple[int, dict[str, Any]] | None = None
        """Version and state before an iteration that Ctrl-C has interrupted."""
        self._running = ExitStack()
        with self._stopping_on_error():
            self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all actors; idempotent."""
        self._running.close()

    def train(self) -> dict[str, float]:
        """Runs one iteration and returns its metrics.

        An error ends all actors. Ctrl-C (KeyboardInterrupt) leaves the learner running, so that
        `give_up_iteration` can roll it back. If the learner dies, training goes back to the last
        checkpoint, or to the beginning if there is none, and the logs are cut back to it. This call
        then runs the iteration that follows, so `iteration` may become smaller.
        """
        if self.iteration == 0:
            self._checkpoints.mark_beginning()
        start_s = time.perf_counter()
        with self._stopping_on_error(Exception), self._remembering_start():
            metrics = None
            while metrics is None:
                try:
                    metrics = self._iterate()
                except WorkerLostError as error:
                    self._replace_learner(error)
            self.iteration += 1
        self._checkpoints.history.add_iteration(self.iteration, metrics)
        faults = {f"fault/{name}": float(number) for name, number in self._faults.items()}
        times = {name: metrics.pop(name) for name in _TIMES}
        times["time/total_s"] = total_s = time.perf_counter() - start_s
        times["time/orchestration_s"] = total_s - sum(times[name] for name in _TIMES)
        metrics = {"train/step": float(self.iteration), **metrics, **faults, **times}
        if self._callbacks is not None:
            from agentpeft.policies.loop.callbacks import check_metrics

            with self._stopping_on_error():
                self._call(self._callbacks.on_iteration_end, metrics)
                check_metrics(metrics)
        return metrics

    def _iterate(self) -> dict[str, float]:
        """One iteration. Raises: WorkerLostError where the learner is gone."""
        batch = self._batches.next()
        metrics = self._learners.update()  # from the groups that `next` has handed to them
        metrics |= deliver(self._learners, self._runners)
        return metrics | self._record(batch)

    def _record(self, report: SampleReport) -> dict[str, float]:
        """Takes in a batch's results, and returns its metrics."""
        self._checkpoints.seen.update(report.task_hashes.values())
        metrics = {"time/sample_s": report.sample_s}
        if not self.settings.is_rl:
            return metrics
        self._record_episodes("train", report)
        metrics["sample/num_stale_groups"] = float(report.num_stale_groups)
        metrics |= self._curriculum.end_round(report.requests, report.records)
        metrics |= {f"train/{n}": rate for n, rate in compute_skill_metrics(report.records).items()}
        metrics["time/env_s"] = report.env_s
        return metrics | {f"sample/{name}": value for name, value in report.metrics().items()}

    @property
    def position(self) -> int:
        """How many tasks of the stream have been taken."""
        return self._curriculum.position

    def _start(self) -> None:
        self._curriculum = Curriculum(self.settings)
        self._running.callback(self._curriculum.close)
        settings = self.settings
        if settings.warm_start.num_steps > 0 and not settings.is_tiny:
            from agentpeft.policies.loop.imitation import warm_start

            settings = warm_start(settings, self.run_dir, self._learner_class)
        self._learners = LearnerGroup(settings, self._learner_class)
        self._running.callback(self._learners.close)
        runners = settings.env_runners
        is_vllm, share = runners.engine == "vllm", runners.num_gpus_per_env_runner
        measures_gpu = is_vllm and runners.kv_cache_gib is None and 0 < share < 1
        if measures_gpu:  # vLLM does at its start, and would count a learner's memory as its own
            self._learners.call_all(LearnerActor.ping)
        self._runners = EnvRunnerGroup(settings, self._faults, self._env_runner_class)
        self._running.callback(self._runners.close)
        if measures_gpu:
            self._runners.actors.call(0, EnvRunnerActor.ping)
        self._learners.wait = self._wait_for_learners
        shared = settings, self._curriculum, self._runners, self._learners
        if settings.is_rl:
            self._batches = TrainingBatches(*shared)
        else:
            from agentpeft.policies.loop.imitation import OracleBatches

            self._batches = OracleBatches(*shared)
        deliver(self._learners, self._runners)

    def _wait_for_learners(self, actors: Actors, results: Sequence[Ref]) -> None:
        """Keeps the runners busy until the learners' results are there, if a lag is allowed."""
        overlaps = self.settings.max_adapter_lag > 0 and self._interrupted is None
        while overlaps and (waiting := missing(actors, results)):
            self._runners.play(waiting)

    def _replace_learner(self, reason: WorkerLostError) -> None:
        """Restarts all actors and goes back to the last checkpoint, as a resumed run does.

        The runners are restarted too: they may see a version again, with other weights.
        """
        limit = min(self.settings.fault_tolerance.max_num_restarts, _MAX_LEARNER_RESTARTS)
        if self._faults["num_learner_restarts"] >= limit:
            raise TrainingError(f"{reason}, after {limit} restarts of the learners") from reason
        self._faults["num_learner_restarts"] += 1
        checkpoint = self._checkpoints.newest
        logger.warning("%s; going back to %s", reason, checkpoint or "the beginning")
        self.stop()
        self._start()
        if checkpoint is not None:
            self.restore_from_path(checkpoint)
            return
        from agentpeft.policies.loop.resuming import go_back_to_beginning

        self.iteration = self._num_episodes = 0
        go_back_to_beginning(self._checkpoints)

    def evaluate(self) -> dict[str, float]:
        """Plays held-out tasks with the present adapter; see `compute_success_metrics`.

        Greedily, unless `evaluation.samples_per_task` is above 1. The best checkpoint is the one of
        the highest success rate, of equal ones the first.
        `num_seen_tasks` counts the tasks whose content training has learnt from, in RL or imitation
        (not in the warm start, nor in an earlier run); their ids do not matter.
        """
        evaluation = self.settings.evaluation
        requests = [
            GroupRequest(position, evaluation.samples_per_task, "eval")
            for position in range(evaluation.num_tasks)
        ]
        with self._stopping_on_error(Exception):
            _, report = self._runners.sample(requests)
            check_world(report)
        if self.iteration == 0 and report.num_left_out:
            say_limit(evaluation.num_tasks - report.num_left_out, evaluation.num_tasks)
        self._record_episodes("eval", report)
        metrics = compute_success_metrics(report.records)
        num_seen = sum(task in self._checkpoints.seen for task in report.task_hashes.values())
        metrics["num_seen_tasks"] = float(num_seen)
        if report.counts.num_slow_episodes:
            metrics["num_slow_episodes"] = float(report.counts.num_slow_episodes)
        self._checkpoints.history.add_evaluation(self.iteration, metrics)
        self._checkpoints.name_best(self.iteration)
        return metrics

    @property
    def is_saved(self) -> bool:
        """Whether the run's own folder of checkpoints has the present policy."""
        return self._checkpoints.saved_iteration == self.iteration

    @property
    def is_best(self) -> bool:
        """Whether the present policy was evaluated, and did better than the best checkpoint."""
        return self._checkpoints.is_best(self.iteration)

    def save_to_path(self, path: str | Path | None = None) -> Path:
        """Writes a checkpoint, whole or not at all, and returns its path.

        `path` None: the run's own folder, which keeps the newest and, as `checkpoints/best`, the
        best by evaluation. Raises: CheckpointError; WorkerLostError where the learner is gone.
        """
        with self._stopping_on_error(WorkerLostError):
            learner_files = self._learners.call(LearnerActor.to_files)
        target = self._checkpoints.save(path, self._state(), learner_files)
        if self._callbacks is not None:
            self._call(self._callbacks.on_checkpoint, target)
        return target

    def restore_from_path(self, path: str | Path) -> None:
        """Resumes from a checkpoint: versions keep counting, and the adapter is delivered again.

        If it is one of this run's own, the logs are cut back to it and later checkpoints are set
        aside. Raises: CheckpointError if a file is damaged or missing, or if model or adapter
        differ; the policy is then as it was.
        """
        from agentpeft.policies.loop import resuming

        checkpoint = resuming.read_to_resume(self._checkpoints, path)
        state = checkpoint.state
        self._curriculum.check_fits(state.get("curriculum"))
        with self._stopping_on_error():
            restore = resuming.restore_learner
            self._learners.call_all(LearnerActor.call_with, restore, checkpoint.files)
            self.iteration, self._num_episodes = state["iteration"], state["num_episodes"]
            self._curriculum.load_state_dict(state["position"], state.get("curriculum"))
            self._batches.clear()
            deliver(self._learners, self._runners)
        resuming.resume_from(self._checkpoints, checkpoint)

    def give_up_iteration(self) -> bool:
        """Goes back to before the iteration that Ctrl-C has interrupted, to save what is whole.

        Nothing but `save_to_path` and `stop` may follow. Returns whether the learner could go back
        (see `Learner.roll_back`). Raises: WorkerLostError, RayHangsError.
        """
        if self._interrupted is None:
            return False
        return self._learners.roll_back(self._interrupted[0])

    def _state(self) -> dict[str, Any]:
        """Returns what a checkpoint needs beside the learner's state."""
        if self._interrupted is not None:
            return self._interrupted[1]
        return {
            "iteration": self.iteration,
            "num_episodes": self._num_episodes,
            "position": self._curriculum.position,
            "curriculum": self._curriculum.state_dict(),
        }

    @contextmanager
    def _remembering_start(self) -> Iterator[None]:
        """Keeps the state before an iteration that is interrupted, if the learner is the same."""
        before = self._runners.version, self._state()
        num_restarts = self._faults["num_learner_restarts"]
        try:
            yield
        except KeyboardInterrupt:
            if self._faults["num_learner_restarts"] == num_restarts:
                self._interrupted = before
            raise

    @contextmanager
    def _stopping_on_error(self, kind: type[BaseException] = BaseException) -> Iterator[None]:
        try:
            yield
        except kind as error:
            self.stop()
            has_checkpoint = self._checkpoints.newest is not None
            is_lost = isinstance(error, WorkerLostError) and has_checkpoint
            if is_lost and not str(error).endswith(_ADVICE):
                raise type(error)(f"{error}{_ADVICE}") from error
            raise

    def _record_episodes(self, name: str, report: SampleReport) -> None:
        if name == "train":
            self._num_episodes += len(report.records)
        if self.settings.output.episodes:
            folder = self.run_dir / SESSIONS
            append_episodes(folder / f"{name}.jsonl", self.iteration, report.records)
            if name == "train":
                records = self._learners.call_all(LearnerActor.read_token_records)
                append_episodes(folder / "tokens.jsonl", self.iteration, records)
        if self._callbacks is not None:
            for record in report.records:
                self._call(self._callbacks.on_episode_end, record, is_evaluation=name == "eval")

    def _call(self, hook: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        from agentpeft.policies.loop.callbacks import call_hook

        call_hook(hook, self, *args, **kwargs)
