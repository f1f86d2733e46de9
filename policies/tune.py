"""Training runs as trials of Ray Tune: `ray.tune.Trainable` over `Algorithm` (extra `tune`)."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

from ray import tune

from agentpeft.policies.algorithm import Algorithm
from agentpeft.policies.config import Settings

_FOLDER = "checkpoint"
_DRIVER_CPUS = 0.1


def make_trainable(values: Mapping[str, Any]) -> type["AlgorithmTrainable"]:
    """Returns what `tune.Tuner` runs; `values` are nested settings, as a TOML file has them.

    A trial's config overrides them by their dotted names, as in `{"training.lr":
    tune.grid_search([1e-4, 1e-3])}`. Settings are checked when a trial is made.
    """
    return type("AgentPEFT", (AlgorithmTrainable,), {"values": dict(values)})


class AlgorithmTrainable(tune.Trainable):
    """A trial: each step is an iteration, the last one is `training.num_iterations`.

    Held-out tasks are played after the last iteration, and at `evaluation.interval`. A trial
    reserves what its runners and its learner need; its run's folder is the trial's.
    """

    values: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        """Returns bundles for the trial itself, its runners and its learner."""
        settings = cls.to_settings(config)
        own, learners = settings.env_runners, settings.learners
        runner = {"CPU": own.num_cpus_per_env_runner, "GPU": own.num_gpus_per_env_runner}
        learner = {"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}
        if own.num_env_runners == 0:
            return tune.PlacementGroupFactory(
                [{name: runner[name] + learner[name] for name in runner}]
            )
        workers = [*[runner] * own.num_env_runners, learner]
        return tune.PlacementGroupFactory([{"CPU": _DRIVER_CPUS}, *filter(_asks_any, workers)])

    @classmethod
    def to_settings(cls, config: Mapping[str, Any]) -> Settings:
        """Returns a trial's settings. Raises: SettingsError."""
        values = deepcopy(dict(cls.values))
        for name, value in config.items():
            section, _, leaf = name.rpartition(".")
            (values.setdefault(section, {}) if section else values)[leaf] = value
        return Settings(**values)

    def setup(self, config: dict[str, Any]) -> None:
        """Starts the run."""
        self._algorithm = Algorithm(self.to_settings(config), Path(self.logdir))

    def step(self) -> dict[str, Any]:
        """Returns the metrics of one iteration."""
        metrics = self._algorithm.train()
        step, settings = self._algorithm.iteration, self._algorithm.settings
        is_last, evaluation = step >= settings.training.num_iterations, settings.evaluation
        is_due = is_last or (evaluation.interval > 0 and step % evaluation.interval == 0)
        if is_due and evaluation.num_tasks > 0:
            metrics |= {f"eval/{n}": value for n, value in self._algorithm.evaluate().items()}
        return {**metrics, "done": is_last}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes a checkpoint of the run."""
        self._algorithm.save_to_path(Path(checkpoint_dir) / _FOLDER)

    def load_checkpoint(self, checkpoint: str) -> None:  # type: ignore[override]
        """Goes on from `save_checkpoint`."""
        self._algorithm.restore_from_path(Path(checkpoint) / _FOLDER)

    def cleanup(self) -> None:
        """Ends the run's processes."""
        self._algorithm.stop()


def _asks_any(bundle: Mapping[str, float]) -> bool:
    return any(amount > 0 for amount in bundle.values())
