"""A study: courses of several orders and seeds, and what they say together."""

import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import factorial
from pathlib import Path
from statistics import fmean
from typing import Any

from agentpeft.apps.lifelong.comparison import (
    bootstrap_interval,
    correct_by_holm,
    sign_flip_p_value,
)
from agentpeft.apps.lifelong.course import (
    Course,
    CourseResult,
    MethodResult,
    TooFewStagesError,
)
from agentpeft.apps.lifelong.methods import METHODS, Method
from agentpeft.apps.lifelong.scores import compute_kl_new, compute_kl_old
from agentpeft.apps.lifelong.stage_runs import (
    check_plan,
    make_base,
    make_folder,
    make_run_settings,
)
from agentpeft.apps.lifelong.study_engine import StudyEngine, with_room
from agentpeft.apps.lifelong.task_sequence import TaskSequence
from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import did_you_mean
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.evaluating.players import playing
from agentpeft.launch.run.run_folder import lock_run
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.loop.evaluation import warn_unless_held_out

logger = logging.getLogger(__name__)
REFERENCE = "sequential"
"""The method that the others are compared with."""
_DIVERGENCES = {"kl_old": compute_kl_old, "kl_new": compute_kl_new}


@dataclass(frozen=True)
class Study:
    """Which courses are run: `num_orders` orders with each of `num_seeds` seeds.

    They are the first orders that differ in the stages that take part. Seeds count from the
    settings' own. `has_divergences`: whether KL divergences between stages are measured too.
    """

    sequence: TaskSequence
    methods: Sequence[str]
    num_orders: int = 1
    num_seeds: int = 1
    has_divergences: bool = True

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        for name in self.methods:
            if name not in METHODS:
                raise SettingsError(f"unknown method {name!r}{did_you_mean(name, METHODS)}")
        if not self.methods:
            raise SettingsError(f"no method is named; there are {', '.join(METHODS)}")
        if self.num_orders < 1 or self.num_seeds < 1:
            raise SettingsError(
                f"orders and seeds must be >= 1, got {self.num_orders} and {self.num_seeds}"
            )
        if self.num_orders > self.sequence.num_orders:
            raise SettingsError(
                f"{len(self.sequence.stages)} stages have {self.sequence.num_orders} orders, got "
                f"--orders {self.num_orders}"
            )

        self._check_runs()

    def _check_runs(self) -> None:
        """Makes the settings of each method's runs. Raises: SettingsError where they cannot be."""
        shared = self.sequence.of_stages(dict.fromkeys(self.sequence.stages, 1.0))
        limits = shared.env_runners
        for name in ("in_context", *(["router"] if limits.engine == "vllm" else [])):
            if limits.agent and name in self.methods:
                raise SettingsError(f"method {name!r} writes prompts, which env_runners.agent does")
        for name, method in self.chosen.items():
            try:
                for adapter in (None, Path("adapter")) if method.kind == "chain" else (None,):
                    make_run_settings(
                        shared, "base", name, adapter=adapter, overrides=method.overrides
                    )
            except SettingsError as error:
                raise SettingsError(f"method {name!r}: {error}") from None

    @property
    def chosen(self) -> dict[str, Method]:
        """The methods by name, in the order of the table."""
        return {name: method for name, method in METHODS.items() if name in self.methods}


def run_study(
    study: Study, folder: Path, signals: StopSignals
) -> Generator[CourseResult, None, None]:
    """Runs all courses, from where an earlier call was interrupted, and yields their results.

    A seed of which fewer than two stages take part is left out, unless that is so of all. Raises:
    SettingsError where `folder` is of another study, or another process runs it; TrainingError;
    Stopped.
    """
    warn_unless_held_out(study.sequence.settings)
    base = make_base(study.sequence.settings, signals)
    folder = folder.absolute()  # runs name it in their settings
    make_folder(folder)
    shared, num_done = study.sequence.settings, 0
    num_evaluated = len(study.sequence.stages) if "router" in study.methods else 1
    with lock_run(folder), StudyEngine(with_room(shared), base, num_evaluated) as engine:
        check_plan(_describe(study.sequence, base), shared.with_model(name=base), folder)
        opener = engine.playing if shared.env_runners.engine == "vllm" else playing
        for number in range(study.num_seeds):
            seed = study.sequence.settings.seed + number
            settings = study.sequence.settings.model_copy(update={"seed": seed})
            own = replace(study.sequence, settings=settings)
            path, has_divergences = folder / f"seed-{seed}", study.has_divergences
            course = Course(
                own, base, path, signals, has_divergences=has_divergences, opener=opener
            )
            try:
                for result in _run_orders(course, study, seed):
                    num_done += 1
                    yield result
            except TooFewStagesError as error:
                if number == study.num_seeds - 1 and not num_done:
                    raise
                logger.warning("seed %d is left out: %s", seed, error)


def _run_orders(course: Course, study: Study, seed: int) -> Generator[CourseResult, None, None]:
    """Runs a seed's courses, each of other stages or in another order than those before.

    Orders that are one without the dropped stages count once, and the next one is run instead.
    """
    num_done, order, num_possible = 0, 0, study.sequence.num_orders
    while num_done < min(study.num_orders, num_possible):
        logger.info("order %d, seed %d", order, seed)
        result = course.run(order, study.chosen)
        if result is not None:
            num_done, num_possible = num_done + 1, factorial(len(result.stages))
            yield result
        order += 1


def summarize(results: Sequence[CourseResult]) -> dict[str, Any]:
    """Returns what the courses say, JSON-able.

    By method: the `matrix` of the first course, the mean of each figure over seeds of the mean over
    their courses, with more than one course its 95 % interval (`_low`, `_high`), and what the
    method cost on average. `comparisons` are of the methods' ACC with `sequential`, where there are
    two seeds or more: the mean difference, and its p-value over seeds by Holm's correction.
    """
    methods = {name: _summarize_method(name, results) for name in results[0].methods}
    first = results[0]
    return {
        "stages": first.stages,
        "dropped": {f"seed {r.seed}": r.dropped for r in results if r.dropped},
        "courses": [{"seed": r.seed, "order": r.order, "stages": r.stages} for r in results],
        "base": first.base,
        "expert": first.expert,
        "methods": methods,
        "comparisons": _compare(results),
    }


def write_results(results: Sequence[CourseResult], summary: Mapping[str, Any], path: Path) -> None:
    """Writes the summary with all courses' matrices and figures."""
    courses = [
        {
            **{name: value for name, value in asdict(result).items() if name != "methods"},
            "methods": {
                name: {"matrix": own.matrix, "divergences": own.divergences, **own.scores}
                for name, own in result.methods.items()
            },
        }
        for result in results
    ]
    write_file(path, json.dumps({**summary, "courses": courses}, indent=1).encode())


def _summarize_method(name: str, results: Sequence[CourseResult]) -> dict[str, Any]:
    own = [result.methods[name] for result in results]
    figures: dict[str, Any] = {"matrix": own[0].matrix}
    for score in (*own[0].scores, *_DIVERGENCES):
        values = _by_seed(results, partial(_find_score, name, score))
        figures[score] = fmean(map(fmean, values)) if values else None
        if sum(map(len, values)) > 1:
            figures[f"{score}_low"], figures[f"{score}_high"] = bootstrap_interval(values)
    routed = [each.router_accuracy for each in own if each.router_accuracy is not None]
    if routed:
        figures["router_accuracy"] = fmean(routed)
    runs = [{run.adapter: run for run in each.runs}.values() for each in own]
    figures["tokens"] = round(fmean(sum(run.num_tokens for run in each) for each in runs))
    figures["seconds"] = round(fmean(sum(run.seconds for run in each) for each in runs), 1)
    figures["bytes"] = round(fmean(_stored_bytes(name, each) for each in own))
    return figures


def _find_score(name: str, score: str, result: CourseResult) -> float | None:
    own = result.methods[name]
    if score in own.scores:
        return own.scores[score]
    return None if own.divergences is None else _DIVERGENCES[score](own.divergences)


def _by_seed(
    results: Sequence[CourseResult], value_of: Callable[[CourseResult], float | None]
) -> list[list[float]]:
    """Returns the values of each seed's courses, of those that have one."""
    values: dict[int, list[float]] = {}
    for result in results:
        if (value := value_of(result)) is not None:
            values.setdefault(result.seed, []).append(value)
    return list(values.values())


def _stored_bytes(name: str, result: MethodResult) -> int:
    """Returns the bytes of adapters that are needed after the last stage."""
    if result.merged_bytes is not None:
        return result.merged_bytes
    runs = list({run.adapter: run for run in result.runs}.values())
    return sum(run.num_bytes for run in (runs if METHODS[name].keeps_all else runs[-1:]))


def _compare(results: Sequence[CourseResult]) -> dict[str, dict[str, float]]:
    if REFERENCE not in results[0].methods or len({r.seed for r in results}) < 2:
        return {}

    def lead(name: str, course: CourseResult) -> float:
        acc, other = (course.methods[each].scores["acc"] for each in (name, REFERENCE))
        return (acc or 0.0) - (other or 0.0)

    differences = {
        name: [*map(fmean, _by_seed(results, partial(lead, name)))]
        for name in results[0].methods
        if name != REFERENCE
    }
    p_values = correct_by_holm({n: sign_flip_p_value(own) for n, own in differences.items()})
    return {
        name: {"acc_difference": fmean(own), "p_value": p_values[name], "num_pairs": len(own)}
        for name, own in differences.items()
    }


def _describe(sequence: TaskSequence, base: str) -> dict[str, Any]:
    """Returns what a study's folder is of."""
    settings = sequence.settings.model_dump(mode="json", exclude={"output"})
    own = {"base": base, "stages": sequence.stages, "entry_rise": sequence.entry_rise}
    return {**own, **settings}
