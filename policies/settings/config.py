"""The settings of a training run: one strict model. `settings.toml` reads them from files.

Sections are one level deep, so that every setting has one dotted name (`training.lr`).
"""

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.registration import find_spec
from agentpeft.policies.settings.model import LoraSettings, ModelSettings, TinySettings
from agentpeft.policies.settings.processes import (
    EnvRunnerSettings,
    FaultToleranceSettings,
    LearnerSettings,
)
from agentpeft.policies.settings.section import Count, CountOrZero, MayChange, Section, Threads
from agentpeft.policies.settings.tasks import (
    CurriculumSettings,
    EnvironmentSettings,
    EvaluationSettings,
    WarmStartSettings,
)
from agentpeft.policies.settings.training import TrainingSettings

__all__ = [
    "SECTIONS",
    "CurriculumSettings",
    "EnvRunnerSettings",
    "EnvironmentSettings",
    "EvaluationSettings",
    "FaultToleranceSettings",
    "LearnerSettings",
    "LoraSettings",
    "ModelSettings",
    "OutputSettings",
    "Settings",
    "TinySettings",
    "TrainingSettings",
    "WarmStartSettings",
    "setting_names",
    "to_toml_value",
]


_Logger = Literal["tensorboard", "episodes", "wandb"]
_Loggers = Annotated[tuple[_Logger, ...], Field(strict=False)]


class OutputSettings(Section):
    """What a run writes."""

    dir: str = "outputs"
    """A run writes below `dir`/experiment/timestamp."""
    checkpoint_interval: MayChange[CountOrZero | Literal["epoch"]] = 10
    """Saves after every so many iterations, at the end and when stopped. 0: only at the end
    and when stopped, so that a killed run is lost but for its best. `epoch`: whenever all tasks
    of a task file, or all of `training.chats`, have been taken once more. An evaluation with more
    success than all before saves too.
    """
    num_checkpoints_kept: MayChange[Count] = 2
    """Number of checkpoints that are kept, the newest. Besides them the one with the most success
    in an evaluation is kept, as [`checkpoints/best`](how_it_works.md#the-best-checkpoint).
    """
    loggers: MayChange[_Loggers] = ("tensorboard", "episodes")
    """What is written besides `metrics.jsonl`. `tensorboard`: its event files in `logs/`.
    `episodes`: every episode with its messages, in `sessions/`, some kilobytes each, so leave it
    out for a long run on a small disk. `wandb`: Weights & Biases (`pip install 'agentpeft[wandb]'`;
    offline with `WANDB_MODE=offline`), with tables of sample episodes where these are written; a
    resumed run continues there.
    """

    @property
    def episodes(self) -> bool:
        """Whether episodes are written."""
        return "episodes" in self.loggers

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        curriculum = run.curriculum
        is_one_set = not curriculum.stages and curriculum.sampling == "uniform"
        if self.checkpoint_interval == "epoch" and not is_one_set:
            yield (
                "output.checkpoint_interval 'epoch' needs one set of tasks that is gone through: "
                "it goes with no curriculum.stages or curriculum.sampling 'frontier'; give a number"
            )


class Settings(Section):
    """All settings of a run; contradictions between them are refused."""

    experiment: str = Field(
        default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200
    )
    """Name of the folder below `output.dir`, and a part of every adapter version's name.

    At most 200 characters.
    """
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides tasks, sampling, new weights and minibatches."""
    deterministic: bool = False
    """CPU only: batches are composed in one fixed way, so that a run can be repeated, and a
    resumed run equals an uninterrupted one to the bit. Needs `max_adapter_lag` 0.
    """
    max_adapter_lag: CountOrZero = 0
    """0 samples and learns in turn. n samples while it learns, up to n updates ahead, and drops
    what is older (counted in `sample/num_stale_groups`); needs a runner process. See
    [staleness](how_it_works.md#staleness).
    """
    in_flight_updates: bool = False
    """With `max_adapter_lag`: a new adapter takes over the turns that are being sampled, after the
    tokens that they have, so that no episode is too long for a batch. What bounds the lag is then
    an episode's end ([in flight](how_it_works.md#adapters-that-change-in-flight)).
    """
    num_threads: MayChange[Threads] = 2
    """Torch's threads: the runners share them while they play, and so do the learners while they
    learn. Each process has one at least.
    """
    num_cpus_per_process: MayChange[float] = Field(default=0.5, ge=0)
    """CPUs that Ray reserves for each runner, each learner and each shared engine."""
    callbacks: MayChange[str | None] = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """`module:Class` of [your own code](callbacks.md) that is called as the run goes on. None:
    none.
    """
    environment: EnvironmentSettings = EnvironmentSettings()
    curriculum: CurriculumSettings = CurriculumSettings()
    model: ModelSettings = ModelSettings()
    tiny: TinySettings = TinySettings()
    lora: LoraSettings = LoraSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    env_runners: EnvRunnerSettings = EnvRunnerSettings()
    training: TrainingSettings = TrainingSettings()
    learners: LearnerSettings = LearnerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    fault_tolerance: FaultToleranceSettings = FaultToleranceSettings()
    output: OutputSettings = OutputSettings()

    def __init__(self, **values: Any) -> None:
        """Takes sections, or mappings of their settings. Raises: SettingsError."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            from agentpeft.policies.settings.wrong_settings import describe_wrong

            raise SettingsError(describe_wrong(error)) from None
        sections = [section for _, section in self if isinstance(section, Section)]
        for section in [self, *sections]:
            for message in section.conflicts(self):
                raise SettingsError(message)
        find_spec(self.environment.id)

    def conflicts(self, _run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect between sections."""
        is_serial = self.env_runners.num_env_runners == 0
        if self.max_adapter_lag > 0 and (is_serial or self.deterministic or not self.is_rl):
            yield (
                f"max_adapter_lag {self.max_adapter_lag} samples while it learns, which the serial "
                "mode (env_runners.num_env_runners = 0), deterministic runs and algorithm 'sft' "
                "cannot: set it to 0"
            )
        if self.in_flight_updates and self.max_adapter_lag == 0:
            yield (
                "in_flight_updates has no effect with max_adapter_lag 0: no turn is under way when "
                "an adapter is new"
            )
        if self.in_flight_updates and self.env_runners.shared_engines is not None:
            yield "in_flight_updates: the turns of env_runners.shared_engines are not interrupted"
        if self.in_flight_updates and self.env_runners.engine == "scripted":
            yield "in_flight_updates has no effect with env_runners.engine = 'scripted'"
        if self.deterministic and self.asks_gpus:
            yield (
                "deterministic runs are on CPUs: learners.num_gpus_per_learner and "
                "env_runners.num_gpus_per_env_runner must be 0"
            )
        if self.deterministic and self.env_runners.engine == "vllm":
            yield (
                "deterministic runs need env_runners.engine = 'transformers': vLLM's rounding "
                "depends on what else is in a batch"
            )
        played = [*self.stage_kwargs, *self.warm_start_kwargs, self.held_out_kwargs]
        if any(kwargs.get("adaptive") for kwargs in played):
            yield (
                "'adaptive' gives each copy of an environment a level of its own: list the levels "
                "in curriculum.stages, which are one for the whole run "
                "(environment.kwargs.adaptive= takes it out of an older run's settings)"
            )

    @property
    def is_rl(self) -> bool:
        """Whether rewards are learnt from, rather than the oracle's episodes."""
        return self.training.algorithm != "sft"

    @property
    def num_served_versions(self) -> int:
        """How many adapter versions an engine with slots serves: the ones that turns end with."""
        return 1 if self.in_flight_updates else 1 + self.max_adapter_lag

    @property
    def stage_kwargs(self) -> list[dict[str, Any]]:
        """The environment's keyword arguments in each of the curriculum's stages, one at least."""
        return [{**self.environment.kwargs, **stage} for stage in self.curriculum.stages or ({},)]

    @property
    def warm_start_kwargs(self) -> list[dict[str, Any]]:
        """The environment's keyword arguments in each of the warm start's stages, one at least."""
        stages = accumulate(self.warm_start.stages, or_, initial=self.environment.kwargs)
        return list(stages)[1:]

    @property
    def warm_start_chats(self) -> str | None:
        """The chats that the warm start learns from. None: the oracle's episodes."""
        return self.training.chats if self.is_rl else None

    @property
    def threads_per_env_runner(self) -> int:
        """Torch's threads in each runner."""
        return max(self.num_threads // max(self.env_runners.num_env_runners, 1), 1)

    @property
    def threads_per_learner(self) -> int:
        """Torch's threads in each learner."""
        return max(self.num_threads // self.learners.num_learners, 1)

    @property
    def held_out_kwargs(self) -> dict[str, Any]:
        """The environment's keyword arguments in evaluation."""
        return {**self.environment.kwargs, **self.evaluation.env_kwargs}

    def with_model(self, **changes: object) -> "Settings":
        """Returns these settings with changes of `model`; a section may be left without effect."""
        model = self.model.model_copy(update=changes)
        return self.model_copy(update={"model": model})

    @property
    def is_tiny(self) -> bool:
        """Whether the base is the built-in model."""
        return self.model.name == "tiny"

    @property
    def asks_gpus(self) -> bool:
        """Whether a runner or a learner is to have a GPU."""
        return (
            self.env_runners.num_gpus_per_env_runner > 0 or self.learners.num_gpus_per_learner > 0
        )

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> "Settings":
        """Returns a file's settings with `section.name=value` overrides. Raises: SettingsError."""
        from agentpeft.policies.settings.toml import read_toml, with_overrides

        return cls(**with_overrides(read_toml(path), overrides))

    def to_toml(self) -> str:
        """Returns the TOML text of all settings that are not None."""
        lines: list[str] = []
        for name, value in self.model_dump(exclude_none=True).items():
            lines += ["", f"[{name}]"] if isinstance(value, dict) else []
            section = value if isinstance(value, dict) else {name: value}
            lines += [f"{key} = {to_toml_value(item)}" for key, item in section.items()]
        return "\n".join(lines) + "\n"


SECTIONS: dict[str, type[Section]] = {
    name: type(field.default)
    for name, field in Settings.model_fields.items()
    if isinstance(field.default, Section)
}


def setting_names() -> list[str]:
    """Returns the dotted names of all settings."""
    names: list[str] = []
    for name in Settings.model_fields:
        keys = SECTIONS[name].model_fields if name in SECTIONS else ()
        names += [f"{name}.{key}" for key in keys] or [name]
    return names


def to_toml_value(value: Any) -> str:
    """Returns a value's TOML text, in one line."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {to_toml_value(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
