"""Training runs as trials of Ray Tune: `ray.tune.Trainable` over `Algorithm` (extra `tune`)."""

import math
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

from ray import tune

from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.settings.config import Settings


def make_trainable(values: Mapping[str, Any]) -> type["AlgorithmTrainable"]:
    """Returns what `tune.Tuner` runs; `values` are nested settings, as a TOML file has them.

    A trial's config overrides them by their dotted names, as {"training.lr": 1e-3}.
    """
    return type("AgentPEFT", (AlgorithmTrainable,), {"values": dict(values)})


class AlgorithmTrainable(tune.Trainable):
    """A trial, in a folder of its own; each step is an iteration.

    Held-out tasks are played after the last iteration, and at `evaluation.interval`.
    """

    values: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def to_settings(cls, config: Mapping[str, Any]) -> Settings:
        """Returns a trial's settings. Raises: SettingsError."""
        values = deepcopy(dict(cls.values))
        for name, value in config.items():
            section, _, leaf = name.rpartition(".")
            (values.setdefault(section, {}) if section else values)[leaf] = value
        return Settings(**values)

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        """Returns bundles for the trial's process, its runners and its learners."""
        settings = cls.to_settings(config)
        own, learners = settings.env_runners, settings.learners
        runner = {"CPU": settings.num_cpus_per_process, "GPU": own.num_gpus_per_env_runner}
        learner = {"CPU": settings.num_cpus_per_process, "GPU": learners.num_gpus_per_learner}
        if own.num_env_runners == 0:
            bundles = [{name: runner[name] + learner[name] for name in runner}]
        else:
            learning = [learner] * learners.num_learners
            bundles = [{"CPU": 0.1}, *[runner] * own.num_env_runners, *learning]
        return tune.PlacementGroupFactory([b for b in bundles if any(b.values())])

    def setup(self, config: dict[str, Any]) -> None:
        """Starts the run."""
        self._evaluated = {"eval/success_rate": math.nan}
        self._algorithm = Algorithm(self.to_settings(config), Path(self.logdir))

    def step(self) -> dict[str, Any]:
        """Returns the metrics of one iteration, with the last evaluation's (none yet: NaN)."""
        metrics, settings = self._algorithm.train(), self._algorithm.settings
        step, interval = self._algorithm.iteration, settings.evaluation.interval
        is_last = step >= settings.training.num_iterations
        if settings.evaluation.num_tasks and (is_last or (interval and step % interval == 0)):
            found = self._algorithm.evaluate()
            self._evaluated = {f"eval/{name}": value for name, value in found.items()}
        return {**metrics, **self._evaluated, "done": is_last}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes a checkpoint of the run."""
        self._algorithm.save_to_path(Path(checkpoint_dir) / "checkpoint")

    def load_checkpoint(self, checkpoint: str) -> None:  # type: ignore[override]
        """Goes on from `save_checkpoint`."""
        self._algorithm.restore_from_path(Path(checkpoint) / "checkpoint")

    def cleanup(self) -> None:
        """Ends the run's processes."""
        self._algorithm.stop()
