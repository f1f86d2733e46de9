"""`AlgorithmConfig`: the settings, said in RLlib's fluent way."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentpeft.policies.checkpointing.checkpoints import write_config
from agentpeft.policies.settings.config import Settings, setting_names, unknown_setting
from agentpeft.policies.settings.config import with_overrides as apply_overrides
from agentpeft.policies.settings.toml import read_toml

if TYPE_CHECKING:
    from agentpeft.policies.loop.algorithm import Algorithm
    from agentpeft.policies.loop.callbacks import Callbacks


class AlgorithmConfig:
    """Gathers settings section by section; every method returns the config itself.

    The keywords of a section are its settings (`docs/training/settings.md`). Unknown ones raise
    SettingsError at once; values and contradictions are checked by `to_settings`.

    Example:
        >>> config = AlgorithmConfig().environment("AgentPEFT/Arithmetic-v0").training(lr=1e-3)
        >>> config.to_settings().training.lr
        0.001
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """`values` are nested settings, as a TOML file has them."""
        self._values: dict[str, Any] = apply_overrides(values or {}, ())
        self._callbacks: type[Callbacks] | None = None

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> "AlgorithmConfig":
        """Returns a file's settings with `section.name=value` overrides. Raises: SettingsError."""
        return cls(apply_overrides(read_toml(path), overrides))

    def _set(self, section: str, settings: Mapping[str, Any]) -> "AlgorithmConfig":
        known = setting_names()
        for name in settings:
            if f"{section}.{name}" not in known:
                raise unknown_setting(f"{section}.{name}")
        self._values[section] = {**self._values.get(section, {}), **settings}
        return self

    def run(self, **settings: Any) -> "AlgorithmConfig":
        """Sets what is in no section: `experiment`, `seed`, `max_adapter_lag` and so on."""
        for name in settings:
            if name not in setting_names():
                raise unknown_setting(name)
        self._values.update(settings)
        return self

    def callbacks(self, callbacks: "type[Callbacks] | str") -> "AlgorithmConfig":
        """Sets whose methods are called as the run goes on: a class, or `module:Class`.

        A class itself is for `build_algo` alone; no file of settings can name it.
        """
        if isinstance(callbacks, str):
            return self.run(callbacks=callbacks)
        self._callbacks = callbacks
        return self

    def environment(self, env_id: str, **kwargs: Any) -> "AlgorithmConfig":
        """Sets the Gymnasium id and the environment's keyword arguments."""
        return self._set("environment", {"id": env_id, "kwargs": kwargs})

    def curriculum(self, **settings: Any) -> "AlgorithmConfig":
        """Sets which tasks training takes next."""
        return self._set("curriculum", settings)

    def model(self, name: str, **settings: Any) -> "AlgorithmConfig":
        """Sets the base model and how it is loaded."""
        return self._set("model", {"name": name, **settings})

    def tiny(self, **settings: Any) -> "AlgorithmConfig":
        """Sets the built-in model's architecture."""
        return self._set("tiny", settings)

    def lora(self, **settings: Any) -> "AlgorithmConfig":
        """Sets the adapter's shape."""
        return self._set("lora", settings)

    def warm_start(self, **settings: Any) -> "AlgorithmConfig":
        """Sets the supervised steps before RL."""
        return self._set("warm_start", settings)

    def env_runners(self, **settings: Any) -> "AlgorithmConfig":
        """Sets who plays the episodes, and how."""
        return self._set("env_runners", settings)

    def training(self, **settings: Any) -> "AlgorithmConfig":
        """Sets the algorithm and its numbers."""
        return self._set("training", settings)

    def learners(self, **settings: Any) -> "AlgorithmConfig":
        """Sets where the updates are computed."""
        return self._set("learners", settings)

    def evaluation(self, **settings: Any) -> "AlgorithmConfig":
        """Sets what is evaluated, and when."""
        return self._set("evaluation", settings)

    def fault_tolerance(self, **settings: Any) -> "AlgorithmConfig":
        """Sets retries and limits."""
        return self._set("fault_tolerance", settings)

    def output(self, **settings: Any) -> "AlgorithmConfig":
        """Sets what a run writes."""
        return self._set("output", settings)

    def to_settings(self) -> Settings:
        """Returns the checked settings. Raises: SettingsError."""
        return Settings(**self._values)

    def build_algo(self, run_dir: str | Path | None = None) -> "Algorithm":
        """Starts runners and learner; `run_dir` None is a new folder in the settings' output.

        The settings are written there, for the commands that take a run's folder.
        """
        from agentpeft.policies.loop.algorithm import Algorithm

        settings, callbacks = self.to_settings(), None
        if self._callbacks is not None:
            from agentpeft.policies.loop.callbacks import make_callbacks

            callbacks = make_callbacks(self._callbacks)
        default = Path(settings.output.dir, settings.experiment, time.strftime("%Y%m%d-%H%M%S"))
        folder = default if run_dir is None else Path(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, settings)
        return Algorithm(settings, folder, callbacks=callbacks)
