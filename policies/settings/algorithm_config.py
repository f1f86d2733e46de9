"""`AlgorithmConfig`: the settings, said in RLlib's fluent way."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypedDict, Unpack

from pydantic import ValidationError

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.registration import find_spec
from agentpeft.policies.checkpointing.checkpoints import make_dated_folder, write_config
from agentpeft.policies.settings import config as sections
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.section import Section

if TYPE_CHECKING:
    from agentpeft.policies.loop.algorithm import Algorithm
    from agentpeft.policies.loop.callbacks import Callbacks

P = ParamSpec("P")


class RunKeywords(TypedDict, total=False):
    """The settings that are in no section."""

    experiment: str
    seed: int
    deterministic: bool
    max_adapter_lag: int
    in_flight_updates: bool
    num_threads: int
    num_cpus_per_process: float
    callbacks: str | None


class ModelKeywords(TypedDict, total=False):
    """The settings of the base model, but for its name."""

    adapter: str | None
    dtype: str
    use_chat_template: bool
    chat_template_kwargs: dict[str, Any]
    system_prompt: str | None
    tool_calls: bool
    end_of_thought: str


def _section(
    name: str, kind: Callable[P, Section]
) -> Callable[Concatenate["AlgorithmConfig", P], "AlgorithmConfig"]:
    """Returns the method that sets a section by keyword: they are those of the section's class."""

    def set_section(
        self: "AlgorithmConfig", /, *args: P.args, **values: P.kwargs
    ) -> "AlgorithmConfig":
        if args:
            raise TypeError(f"{name} takes settings by keyword, got {args!r}")
        return self._set(name, values)

    declared = signature(kind)
    first = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    set_section.__signature__ = declared.replace(  # type: ignore[attr-defined]
        parameters=[first, *declared.parameters.values()], return_annotation="AlgorithmConfig"
    )
    set_section.__name__ = name
    set_section.__qualname__ = f"AlgorithmConfig.{name}"
    set_section.__doc__ = f"Sets the section `{name}`, by keyword."
    return set_section


class AlgorithmConfig:
    """Gathers settings section by section; every method returns the config itself.

    The keywords of a section are its settings (`docs/training/settings.md`). Unknown ones and wrong
    values raise SettingsError at once; `to_settings` finds those that contradict one another.

    Example:
        >>> config = AlgorithmConfig().environment("AgentPEFT/Arithmetic-v0").training(lr=1e-3)
        >>> config.to_settings().training.lr
        0.001
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """`values` are nested settings, as `Settings` has them."""
        self._values: dict[str, Any] = deepcopy(dict(values or {}))
        self._callbacks: type[Callbacks] | None = None

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> "AlgorithmConfig":
        """Returns a file's settings with `section.name=value` overrides. Raises: SettingsError."""
        from agentpeft.policies.settings.toml import read_toml, with_overrides

        return cls(with_overrides(read_toml(path), overrides))

    def _set(self, section: str, values: Mapping[str, Any]) -> "AlgorithmConfig":
        return self._update({section: {**self._values.get(section, {}), **values}})

    def _update(self, values: Mapping[str, Any]) -> "AlgorithmConfig":
        """Takes nested settings. Raises: SettingsError, but not where they contradict others."""
        try:
            Section.__init__(Settings.__new__(Settings), **values)
        except ValidationError as error:
            from agentpeft.policies.settings.wrong_settings import describe_wrong

            raise SettingsError(describe_wrong(error)) from None
        self._values.update(values)
        return self

    def run(self, **values: Unpack[RunKeywords]) -> "AlgorithmConfig":
        """Sets what is in no section: `experiment`, `seed`, `max_adapter_lag` and so on."""
        return self._update(values)

    def callbacks(self, callbacks: "type[Callbacks] | str") -> "AlgorithmConfig":
        """Sets whose methods are called during the run: a class, or `module:Class`.

        A class itself is for `build_algo` alone; no file of settings can name it.
        """
        if isinstance(callbacks, str):
            return self.run(callbacks=callbacks)
        self._callbacks = callbacks
        return self

    def environment(self, env_id: str, **kwargs: Any) -> "AlgorithmConfig":
        """Sets the Gymnasium id and the environment's keyword arguments."""
        find_spec(env_id)
        return self._set("environment", {"id": env_id, "kwargs": kwargs})

    def model(self, name: str, **values: Unpack[ModelKeywords]) -> "AlgorithmConfig":
        """Sets the base model and how it is loaded."""
        return self._set("model", {"name": name, **values})

    curriculum = _section("curriculum", sections.CurriculumSettings)
    """Sets which tasks training takes next."""
    tiny = _section("tiny", sections.TinySettings)
    """Sets the built-in model's architecture."""
    lora = _section("lora", sections.LoraSettings)
    """Sets the adapter's shape."""
    warm_start = _section("warm_start", sections.WarmStartSettings)
    """Sets the supervised steps before RL."""
    env_runners = _section("env_runners", sections.EnvRunnerSettings)
    """Sets who plays the episodes, and how."""
    training = _section("training", sections.TrainingSettings)
    """Sets the algorithm and its numbers."""
    learners = _section("learners", sections.LearnerSettings)
    """Sets where the updates are computed."""
    evaluation = _section("evaluation", sections.EvaluationSettings)
    """Sets what is evaluated, and when."""
    fault_tolerance = _section("fault_tolerance", sections.FaultToleranceSettings)
    """Sets retries and limits."""
    output = _section("output", sections.OutputSettings)
    """Sets what a run writes."""

    def to_settings(self) -> Settings:
        """Returns the checked settings. Raises: SettingsError."""
        return Settings(**self._values)

    def build_algo(self, run_dir: str | Path | None = None) -> "Algorithm":
        """Starts runners and learner; `run_dir` None is a new folder in the settings' output.

        The settings are written there, for the commands that take a run's folder. Raises:
        SettingsError where no folder can be made.
        """
        from agentpeft.policies.loop.algorithm import Algorithm

        settings, callbacks = self.to_settings(), None
        if self._callbacks is not None:
            from agentpeft.policies.loop.callbacks import make_callbacks

            callbacks = make_callbacks(self._callbacks)
        if run_dir is None:
            folder = make_dated_folder(Path(settings.output.dir, settings.experiment))
        else:
            folder = Path(run_dir)
            folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, settings)
        return Algorithm(settings, folder, callbacks=callbacks)
