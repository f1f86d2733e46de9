"""A sequence of stages: what is learnt, one thing after the other, and in which order."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np

from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import did_you_mean, is_number, shown
from agentpeft.launch.run.run_folder import CONFIGS, find_config
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import MIXTURE, parse_value
from agentpeft.policies.settings.tasks import EnvironmentSettings
from agentpeft.policies.settings.toml import PRETRAINED, merge_settings, read_toml, with_overrides

FOLDER = Path(__file__).parent / "sequences"
_STAGE_KEYS = {"name", "id", "kwargs"}
_STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_ENTRY_RISE = 0.15
_NO_SETTINGS = ("base", "entry_rise")
"""Keys of a sequence's file that are no settings, and that overrides may change."""


@dataclass(frozen=True)
class TaskSequence:
    """Stages by name, in the order of the file, and the settings that all of them share.

    The settings' environment is the mixture of all stages. A stage takes part if its own expert
    raises its success by `entry_rise` or more over the base; with -1 all do.
    """

    settings: Settings
    stages: tuple[str, ...]
    entry_rise: float

    def of_stages(self, shares: Mapping[str, float]) -> Settings:
        """Returns the settings whose tasks are of some stages, by their shares."""
        environment = self.settings.environment
        weights = [float(shares.get(name, 0.0)) for name in self.stages]
        kwargs = {**environment.kwargs, "weights": weights}
        changed = environment.model_copy(update={"kwargs": kwargs})
        return self.settings.model_copy(update={"environment": changed})

    def order(self, number: int) -> tuple[str, ...]:
        """Returns the stages in an order of their own: 0 is the file's, the others are shuffled.

        Raises: SettingsError where there are not so many orders.
        """
        if number >= self.num_orders:
            raise SettingsError(
                f"{len(self.stages)} stages have {self.num_orders} orders (0 to "
                f"{self.num_orders - 1}), got {number}"
            )
        found = {self.stages: None}
        shuffles = (np.random.default_rng(seed).permutation(len(self.stages)) for seed in count(1))
        while len(found) <= number:
            found[tuple(self.stages[place] for place in next(shuffles))] = None
        return list(found)[number]

    @property
    def num_orders(self) -> int:
        """How many orders the stages have."""
        return factorial(len(self.stages))

    def with_stages(self, names: Sequence[str]) -> "TaskSequence":
        """Returns the sequence of some of its stages alone, whose base is of these too.

        Raises: SettingsError on unknown ones, and on fewer than two.
        """
        for name in names:
            if name not in self.stages:
                raise SettingsError(f"unknown stage {name!r}{did_you_mean(name, self.stages)}")
        if len(set(names)) < 2:
            raise SettingsError(f"a sequence has two stages or more, got {', '.join(names)}")
        own = self.settings.environment
        kept = [source for source in own.kwargs["sources"] if source["name"] in names]
        environment = own.model_copy(update={"kwargs": {**own.kwargs, "sources": kept}})
        settings = self.settings.model_copy(update={"environment": environment})
        return replace(self, settings=settings, stages=tuple(each["name"] for each in kept))


def read_sequence(
    name: str, overrides: Sequence[str] = (), *, is_quick: bool = False
) -> TaskSequence:
    """Returns a built-in sequence by its name, or one of a TOML file's path.

    The file is a config with `[[stages]]`, each a `name` and what it changes of `[environment]`;
    `entry_rise`; and `[quick]`, the settings that a quick look changes. In a config of a mixture,
    without stages, each source is one. `overrides` may say `entry_rise` too, and `base`: the config
    with whose settings the stages are learnt. Raises: SettingsError.
    """
    values = read_toml(find_config(name, FOLDER, "sequence"), CONFIGS)
    pairs = [override.partition("=") for override in overrides]
    replaced = {key: text for key, _, text in pairs if key in _NO_SETTINGS}
    overrides = ["".join(pair) for pair in pairs if pair[0] not in _NO_SETTINGS]
    quick, stages = values.pop("quick", None), values.pop("stages", None)
    rise = values.pop("entry_rise", _ENTRY_RISE)
    rise = parse_value(replaced["entry_rise"]) if "entry_rise" in replaced else rise
    values.pop(PRETRAINED, None)  # its stages begin from the base that the sequence is about
    if is_quick:
        if not isinstance(quick, dict):
            raise SettingsError(f"{name} has no section quick: leave out --quick")
        values = merge_settings(values, quick)
    if "base" in replaced:
        values = _on_base(values, replaced["base"])
    if not (is_number(rise) and -1 <= rise <= 1):
        raise SettingsError(f"entry_rise must be a number from -1 to 1, got {shown(rise)}")
    values = with_overrides(values, overrides)
    sources = _to_sources(name, *_find_stages(stages, values.get("environment", {})))
    environment = {"id": MIXTURE, "kwargs": {"sources": sources}}
    settings = Settings(**{**values, "environment": environment})
    _check(settings)
    return TaskSequence(settings, tuple(source["name"] for source in sources), float(rise))


def _check(settings: Settings) -> None:
    """Raises: SettingsError on what stages cannot be learnt, or compared, with."""
    if settings.evaluation.num_tasks == 0:
        raise SettingsError("evaluation.num_tasks must be above 0: stages are compared by them")
    if not settings.lora.use_lora:
        raise SettingsError("the stages of a sequence are adapters: lora.rank must be >= 1")
    if settings.curriculum.sampling != "uniform" or settings.training.dynamic_sampling:
        raise SettingsError(
            "the shares of replayed and joint stages would not hold: curriculum.sampling must be "
            "'uniform' and training.dynamic_sampling false"
        )
    if settings.curriculum.stages:
        raise SettingsError("curriculum.stages cannot be stages of a sequence: write [[stages]]")
    if settings.model.adapter is not None:
        raise SettingsError(
            "all stages begin from the base alone: leave out model.adapter, or merge it into the "
            "base and name that in model.name"
        )
    if settings.model.name != "tiny" and settings.warm_start.num_steps > 0:
        raise SettingsError(
            "warm_start.num_steps makes the one base of all stages, which model.name "
            f"{settings.model.name!r} is already: set it to 0"
        )


def _on_base(values: dict[str, Any], base: str) -> dict[str, Any]:
    """Returns a config's settings, for as long and evaluated as a sequence's `values` say.

    Raises: SettingsError where the stages are of another environment than the config's.
    """
    below = read_toml(find_config(base), CONFIGS)
    below.pop(PRETRAINED, None)
    ids = [_read_environment(side.get("environment", {})).id for side in (values, below)]
    if ids[0] != ids[1]:
        raise SettingsError(
            f"base {base!r} plays {ids[1]}, and the stages of {values.get('experiment')!r} are of "
            f"{ids[0]}: take a config of that environment"
        )
    training = {"dynamic_sampling": False}
    if length := values.get("training", {}).get("num_iterations"):
        training["num_iterations"] = length
    above = {
        "experiment": f"{values.get('experiment')}-{Path(base).stem}",
        "curriculum": {"sampling": "uniform"},
        "training": training,
        "evaluation": values.get("evaluation", {}),
    }
    return merge_settings(below, above)


def _find_stages(stages: object, environment: Any) -> tuple[object, Any]:
    """Returns the stages, which may be a mixture's sources, and the section that they share.

    Raises: SettingsError.
    """
    if stages is not None:
        return stages, environment
    checked = _read_environment(environment)
    if checked.id != MIXTURE:
        return [], environment
    shared = {name: value for name, value in checked.kwargs.items() if name != "sources"}
    if "weights" in shared:
        raise SettingsError(
            "a mixture's weights have no effect where its sources are stages, each learnt alone: "
            "leave out environment.kwargs.weights"
        )
    sources = checked.kwargs.get("sources", [])
    if not isinstance(sources, list | tuple) or not all(map(_has_kwargs, sources)):
        raise SettingsError("environment.kwargs.sources must be tables, with kwargs as tables")
    return [{**each, "kwargs": {**each.get("kwargs", {}), **shared}} for each in sources], {}


def _has_kwargs(source: object) -> bool:
    return isinstance(source, dict) and isinstance(source.get("kwargs", {}), dict)


def _read_environment(environment: object) -> EnvironmentSettings:
    """Returns a section `environment` by itself. Raises: SettingsError."""
    alone = {"environment": environment, "evaluation": {"num_tasks": 0, "interval": 0}}
    return Settings(**alone).environment


def _to_sources(name: str, stages: object, environment: Any) -> list[dict[str, Any]]:
    """Returns the stages as a mixture's sources: name, id and all keyword arguments.

    `environment` is the section that they share. Raises: SettingsError.
    """
    shared = _read_environment(environment).model_dump()
    if not isinstance(stages, list) or len(stages) < 2:
        raise SettingsError(f"{name} has no [[stages]]: a sequence has two or more")
    sources = []
    for number, stage in enumerate(stages):
        if not isinstance(stage, dict) or not _STAGE_NAME.fullmatch(str(stage.get("name", ""))):
            raise SettingsError(
                f"{name}: stage {number} is a table with a name (letters, digits, _ and -), got "
                f"{stage!r:.80}"
            )
        for key in stage.keys() - _STAGE_KEYS:
            raise SettingsError(
                f"{name}: stage {stage['name']!r} has an unknown key {key!r}; known: name, id, "
                "kwargs"
            )
        own = {"environment": {key: stage[key] for key in ("id", "kwargs") if key in stage}}
        merged = _read_environment(merge_settings({"environment": shared}, own)["environment"])
        sources.append({"name": stage["name"], "id": merged.id, "kwargs": merged.kwargs})
    return sources
