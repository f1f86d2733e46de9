"""Training runs as trials of Ray Tune: `ray.tune.Trainable` over `Algorithm`."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ray import tune

from agentpeft.launch.reporting.run_data import METRICS_FILE
from agentpeft.launch.run.metric_writers import JsonlWriter
from agentpeft.launch.run.ray_session import say_cause
from agentpeft.launch.run.run_folder import fill_run_dir
from agentpeft.policies.checkpointing.checkpoints import CONFIG_FILE
from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.settings.config import Settings


def make_trainable(
    to_settings: Callable[[Mapping[str, Any]], Settings], folder: Path | None = None
) -> type["AlgorithmTrainable"]:
    """Returns what `tune.Tuner` runs; `to_settings` makes a trial's settings of its config.

    A trial's run is in a folder below `folder`, by the trial's name; None: in Tune's own of it.
    """
    members = {"to_settings": staticmethod(to_settings), "folder": folder}
    return type("AgentPEFT", (AlgorithmTrainable,), members)


class AlgorithmTrainable(tune.Trainable):
    """A trial, which writes a run's folder; each step is an iteration.

    The tasks of evaluation are played before the first iteration, after the last, and at
    `evaluation.interval`.
    """

    folder: ClassVar[Path | None] = None

    @staticmethod
    def to_settings(config: Mapping[str, Any]) -> Settings:
        """Returns a trial's settings. Raises: SettingsError."""
        return Settings(**config)

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        """Returns bundles for the trial's process, its runners and its learners."""
        settings = cls.to_settings(config)
        runners, learners = settings.env_runners, settings.learners
        runner = {"CPU": settings.num_cpus_per_process, "GPU": runners.num_gpus_per_env_runner}
        learner = {"CPU": settings.num_cpus_per_process, "GPU": learners.num_gpus_per_learner}
        if runners.num_env_runners == 0:
            bundles = [{name: runner[name] + learner[name] for name in runner}]
        else:
            learning = [learner] * learners.num_learners
            bundles = [{"CPU": 0.1}, *[runner] * runners.num_env_runners, *learning]
        return tune.PlacementGroupFactory([b for b in bundles if any(b.values())])

    def setup(self, config: dict[str, Any]) -> None:
        """Starts the run."""
        self._evaluated = {"eval/success_rate": math.nan}
        settings = self.to_settings(config)
        run_dir = Path(self.logdir) if self.folder is None else self.folder / self.trial_name
        run_dir.mkdir(parents=True, exist_ok=True)
        if not (run_dir / CONFIG_FILE).exists():  # `sweep` has written it
            fill_run_dir(run_dir, settings)
        self._writer = JsonlWriter(run_dir / METRICS_FILE)
        self._algorithm = Algorithm(settings, run_dir)

    def step(self) -> dict[str, Any]:
        """Returns the metrics of one iteration, with the last evaluation's (none yet: NaN)."""
        algorithm, settings = self._algorithm, self._algorithm.settings
        if algorithm.iteration == 0:
            self._writer.write(0, self._evaluate())
        metrics = algorithm.train()
        step, interval = algorithm.iteration, settings.evaluation.interval
        is_last = step >= settings.training.num_iterations
        is_due = is_last or (interval and step % interval == 0)
        self._writer.write(step, metrics | (self._evaluate() if is_due else {}))
        if is_last:
            algorithm.save_to_path()
        return {**metrics, **self._evaluated, "done": is_last}

    def _evaluate(self) -> dict[str, float]:
        """Plays the tasks of evaluation, if there are any, and returns the metrics."""
        if self._algorithm.settings.evaluation.num_tasks == 0:
            return {}
        rates = self._algorithm.evaluate()
        self._evaluated = {f"eval/{name}": value for name, value in rates.items()}
        return self._evaluated

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes a checkpoint of the run."""
        self._algorithm.save_to_path(Path(checkpoint_dir) / "checkpoint")

    def load_checkpoint(self, checkpoint: str) -> None:  # type: ignore[override]
        """Goes on from `save_checkpoint`."""
        self._algorithm.restore_from_path(Path(checkpoint) / "checkpoint")

    def cleanup(self) -> None:
        """Ends the run's processes."""
        self._algorithm.stop()


class _Told(tune.Callback):
    """Prints a line for each trial that has ended."""

    def on_trial_complete(self, *_: Any, trial: Any, **__: Any) -> None:  # type: ignore[override]
        print(f"{trial}: done", file=sys.stderr, flush=True)

    def on_trial_error(self, *_: Any, trial: Any, **__: Any) -> None:  # type: ignore[override]
        print(f"{trial}: failed", file=sys.stderr, flush=True)


def run_trials(
    settings: Sequence[Settings], names: Sequence[str], folder: Path, storage: Path
) -> list[tuple[float | None, str | None]]:
    """Runs a trial with each settings, in folders by their names; `storage` is for Tune's files.

    Returns the seconds of each, and why it has no end, in one line; None where it has.
    """
    tuner = tune.Tuner(
        make_trainable(lambda config: settings[config["run"]], folder),
        param_space={"run": tune.grid_search(list(range(len(settings))))},
        tune_config=tune.TuneConfig(trial_name_creator=lambda trial: names[trial.config["run"]]),
        run_config=tune.RunConfig(storage_path=str(storage), verbose=0, callbacks=[_Told()]),
    )
    results = tuner.fit()
    ends: list[tuple[float | None, str | None]] = [(None, "it has not begun")] * len(settings)
    for result in map(results.__getitem__, range(len(results))):
        metrics = result.metrics or {}
        error = None if metrics.get("done") else "it was stopped"
        if result.error is not None:
            error = say_cause(result.error)
        ends[(result.config or {})["run"]] = metrics.get("time_total_s"), error
    return ends
