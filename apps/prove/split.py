"""What a rise consists of, whether the reward taught it, and how sure that is.

Each figure is a mean over seeds of a mean over tasks; `prove.md` has the formulae, and a worked
example of 12 tasks.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from statistics import fmean

import numpy as np

from agentpeft.launch.evaluating.comparison import bootstrap_interval
from agentpeft.policies.loop.evaluation import pass_at_k

_NUM_HALVINGS = 2_000
TOLERANCE = 0.05
"""What a control may rise by in any case, as a share of the tasks."""
_MAX_UNPLAYED = 0.1
"""The share of a study's held-out tasks that may be left out of its figures."""


@dataclass(frozen=True)
class TaskResult:
    """One held-out task of a seed: who solves it, greedily, and how often the base does in samples.

    `before` is the base's, `after` that of the run with true rewards; `shuffled` and `form` are of
    the two others. `position` is the task's place among the held-out ones. `is_base_graded`: the
    base's greedy episode ended with what could be graded, right or wrong.
    """

    position: int
    task_id: str
    skills: tuple[str, ...]
    before: bool
    after: bool
    shuffled: bool
    form: bool
    num_samples: int
    num_sampled_successes: int
    is_base_graded: bool = True


@dataclass(frozen=True)
class SeedResult:
    """A seed's tasks, and by run the curve of success on them: by iteration, from 0 on.

    `num_unplayed` tasks are left out, which some evaluation has not played to their end.
    `num_seen` were drawn in training too.
    """

    seed: int
    tasks: tuple[TaskResult, ...]
    curves: Mapping[str, Mapping[int, float]]
    num_unplayed: int = 0
    num_seen: int = 0


class Part(StrEnum):
    """What a task counts as, whose success has changed."""

    FORM = "form"
    ELICITED = "elicited"
    NEW = "new"
    LOST = "lost"


def find_part(task: TaskResult) -> Part | None:
    """Returns what a task counts as; None where it is solved before and after, or neither."""
    if task.before == task.after:
        return None
    if task.before:
        return Part.LOST
    if task.form:
        return Part.FORM
    return Part.ELICITED if task.num_sampled_successes > 0 else Part.NEW


@dataclass(frozen=True)
class Figure:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def _is_part(part: Part, task: TaskResult) -> bool:
    return find_part(task) is part


TaskValue = Callable[[TaskResult], float]
RATES: dict[str, TaskValue] = {
    "before": lambda task: task.before,
    "after": lambda task: task.after,
    "after_shuffled": lambda task: task.shuffled,
    "after_form": lambda task: task.form,
}
"""Success rates, which have no interval: their differences have."""
DIFFERENCES: dict[str, TaskValue] = {
    "rise": lambda task: task.after - task.before,
    "rise_shuffled": lambda task: task.shuffled - task.before,
    "rise_form": lambda task: task.form - task.before,
    "rise_above_shuffled": lambda task: task.after - task.shuffled,
    "rise_without_form": lambda task: (task.after - task.before) * (find_part(task) != Part.FORM),
    "rise_above_shuffled_without_form": lambda task: (
        (task.after - task.shuffled) * (find_part(task) != Part.FORM)
    ),
    "rise_where_base_was_graded": lambda task: (task.after - task.before) * task.is_base_graded,
}
PARTS: dict[Part, TaskValue] = {part: partial(_is_part, part) for part in Part}


@dataclass(frozen=True)
class Figures:
    """All figures of some tasks: of every seed's, or of those with a skill.

    `rates` are shares of tasks, `pass@k` the base's too; `differences` and `parts` have intervals.
    """

    num_tasks: int
    rates: Mapping[str, float]
    differences: Mapping[str, Figure]
    parts: Mapping[str, Figure]


def compute_figures(seeds: Sequence[Sequence[TaskResult]]) -> Figures:
    """Returns the figures of each seed's tasks together. Raises: ValueError without tasks."""
    seeds = [tasks for tasks in seeds if tasks]
    for tasks in seeds:
        _check_sum(tasks)
    differences = {name: _estimate(seeds, values) for name, values in DIFFERENCES.items()}
    parts = {part.value: _estimate(seeds, values, minimum=0.0) for part, values in PARTS.items()}
    rates = {name: _mean(seeds, values) for name, values in RATES.items()}
    samples = min(task.num_samples for tasks in seeds for task in tasks)
    for k in [2**i for i in range(samples.bit_length())]:
        rates[f"pass@{k}"] = _mean(seeds, partial(_pass_at, k))
    return Figures(sum(map(len, seeds)), rates, differences, parts)


def _pass_at(k: int, task: TaskResult) -> float:
    return pass_at_k(task.num_samples, task.num_sampled_successes, k)


def _check_sum(tasks: Sequence[TaskResult]) -> None:
    """Raises: ArithmeticError unless rise = form + elicited + new - lost, exactly."""
    parts = Counter(map(find_part, tasks))
    rise = sum(task.after for task in tasks) - sum(task.before for task in tasks)
    if rise != parts[Part.FORM] + parts[Part.ELICITED] + parts[Part.NEW] - parts[Part.LOST]:
        raise ArithmeticError(f"a rise of {rise} tasks is not the sum of its parts, {parts}")


def _mean(seeds: Sequence[Sequence[TaskResult]], values: TaskValue) -> float:
    return fmean(fmean(map(values, tasks)) for tasks in seeds)


def _estimate(
    seeds: Sequence[Sequence[TaskResult]], values: TaskValue, minimum: float = -1.0
) -> Figure:
    ids = [[task.task_id for task in tasks] for tasks in seeds]
    low, high = bootstrap_interval([list(map(float, map(values, tasks))) for tasks in seeds], ids)
    return Figure(_mean(seeds, values), max(low, minimum), high)


def measure_noise(seeds: Sequence[Sequence[TaskResult]]) -> float:
    """Returns by how much the base's success differs between two disjoint halves of the tasks.

    That is what 95 % of 2,000 random halvings stay below, as means over seeds: 0.08 for 400 tasks
    of which it solves 90. Places with one task are in one half, in all seeds.
    """
    names = sorted({task.task_id for tasks in seeds for task in tasks})
    place, size = {name: number for number, name in enumerate(names)}, len(names) // 2
    numbers = np.tile(np.arange(len(names), dtype=np.int32), (_NUM_HALVINGS, 1))
    order = np.random.default_rng(0).permuted(numbers, axis=1)
    differences = np.zeros(_NUM_HALVINGS)
    for tasks in seeds:
        before = np.array([float(task.before) for task in tasks])
        drawn = order[:, [place[task.task_id] for task in tasks]]
        first, second = drawn < size, drawn >= len(names) - size
        num_first, num_second = first.sum(axis=1), second.sum(axis=1)
        apart = first @ before / np.maximum(num_first, 1)
        apart -= second @ before / np.maximum(num_second, 1)
        differences += np.where((num_first > 0) & (num_second > 0), apart, 0.0)
    return float(np.quantile(np.abs(differences / len(seeds)), 0.95))


@dataclass(frozen=True)
class ProofVerdict:
    """Whether the reward taught something that is not form alone, in one sentence.

    `noise` is that of `measure_noise`, `allowed` what the control may rise by.
    """

    is_proven: bool
    sentence: str
    noise: float
    allowed: float


def judge(figures: Figures, noise: float, num_unplayed: int, num_seen: int) -> ProofVerdict:
    """Returns the verdict: the first condition that fails, else that it is proven.

    `num_unplayed` held-out tasks are not in the figures, `num_seen` were drawn in training too.
    """
    allowed = max(noise, TOLERANCE)
    found = figures.differences
    rise, shuffled, advantage = found["rise"], found["rise_shuffled"], found["rise_above_shuffled"]
    without_form, graded = found["rise_without_form"], found["rise_where_base_was_graded"]
    advantage_without_form = found["rise_above_shuffled_without_form"]
    rates = [100 * figures.rates[name] for name in ("before", "after")]
    success = "held-out success {:.1f} -> {:.1f} %".format(*rates)
    parts = {name: 100 * part.mean for name, part in figures.parts.items()}
    form_alone = "form alone was learned, as far as these tasks show"
    if without_form.mean > figures.parts["form"].mean:
        form_alone = "it is not shown that more than form was learned"
    num_tasks = figures.num_tasks + num_unplayed
    reasons = (
        (num_seen > 0, f"training has drawn held-out tasks too, {num_seen} of {num_tasks}"),
        (
            num_unplayed > _MAX_UNPLAYED * num_tasks,
            f"{num_unplayed} of {num_tasks} held-out tasks were not played to their end",
        ),
        (rise.high < 0, f"training lowered success: {success}, {_say(rise)}"),
        (figures.rates["before"] == 1, f"the base solves every held-out task: {success}"),
        (rise.low <= 0, f"nothing was learned: {success}, {_say(rise)}, which may be chance"),
        (
            shuffled.mean > allowed or (shuffled.mean > TOLERANCE and shuffled.low > 0),
            f"success rises with shuffled rewards too, {_say(shuffled)}, where "
            f"{100 * (allowed if shuffled.low <= 0 else TOLERANCE):.1f} may be noise; with true "
            f"rewards: {success}",
        ),
        (
            advantage.low <= 0,
            f"true rewards are not shown to do better than shuffled ones: {success}, "
            f"{_say(advantage)} more than with shuffled rewards",
        ),
        (
            without_form.low <= 0,
            f"{form_alone}: {success}, of which form is {parts['form']:.1f} points, and the rest "
            f"{_say(without_form)}",
        ),
        (
            advantage_without_form.low <= 0,
            f"what is not form is not shown to be above shuffled rewards: {success}, of which form "
            f"is {parts['form']:.1f} points, and the rest {_say(advantage_without_form)} more than "
            "with shuffled rewards",
        ),
        (
            found["rise_form"].low <= 0 and graded.low <= 0,
            f"form cannot be told from the rest, as the run rewarded for it solves no more: "
            f"{success}, but {_say(graded)} where the base ended with what could be graded",
        ),
    )
    failed = next((reason for fails, reason in reasons if fails), None)
    split = ", ".join(f"{name} {value:.1f}" for name, value in parts.items())
    learned = f"{success}, {_say(rise)}, {_say(advantage)} more than with shuffled rewards: {split}"
    sentence = f"Proven: {learned}." if failed is None else f"Not proven: {failed}."
    return ProofVerdict(failed is None, sentence, noise, allowed)


def _say(figure: Figure) -> str:
    mean, low, high = (100 * value for value in (figure.mean, figure.low, figure.high))
    return f"{mean:+.1f} points (95 %: {low:+.1f} to {high:+.1f})"


@dataclass(frozen=True)
class RewardProof:
    """A verdict with all that it stands on: figures of all tasks, by skill and by seed.

    `num_unplayed` and `num_seen` are of all seeds.
    """

    verdict: ProofVerdict
    figures: Figures
    by_skill: Mapping[str, Figures]
    by_seed: Mapping[int, Figures]
    seeds: tuple[SeedResult, ...]
    num_unplayed: int
    num_seen: int


def make_proof(seeds: Sequence[SeedResult]) -> RewardProof:
    """Returns the proof of what was measured. Raises: ValueError without seeds or tasks."""
    tasks = [seed.tasks for seed in seeds]
    figures = compute_figures(tasks)
    skills = sorted({skill for of_seed in tasks for task in of_seed for skill in task.skills})
    by_skill = {
        skill: compute_figures(
            [[task for task in of_seed if skill in task.skills] for of_seed in tasks]
        )
        for skill in skills
    }
    by_seed = {seed.seed: compute_figures([seed.tasks]) for seed in seeds}
    left_out = sum(seed.num_unplayed for seed in seeds), sum(seed.num_seen for seed in seeds)
    verdict = judge(figures, measure_noise(tasks), *left_out)
    return RewardProof(verdict, figures, by_skill, by_seed, tuple(seeds), *left_out)
