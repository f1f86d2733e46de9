"""How two policies compare on the tasks that both have played."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from agentpeft.envs import Outcome
from agentpeft.policies.messages import EpisodeRecord

_NUM_DRAWS = 10_000
_Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """By how much a policy's success rate is above another's, task by task.

    `low` and `high` are the 95 % interval of `difference`; `num_better` counts the tasks with more
    successes than the other policy's, `num_worse` those with fewer.
    """

    policy: str
    other: str
    num_tasks: int
    difference: float
    low: float
    high: float
    num_better: int
    num_worse: int


def compare_all(records: Mapping[str, Sequence[EpisodeRecord]]) -> list[Comparison]:
    """Returns how each policy compares with each one after it, by their episodes."""
    rates = {name: _rates_by_task(episodes) for name, episodes in records.items() if episodes}
    ids = {r.group_id: r.task_id for episodes in records.values() for r in episodes}
    return [compare(*pair, rates[pair[0]], rates[pair[1]], ids) for pair in combinations(rates, 2)]


def compare(
    policy: str,
    other: str,
    rates: Mapping[int, float],
    other_rates: Mapping[int, float],
    task_ids: Mapping[int, str] | None = None,
) -> Comparison:
    """Returns how a policy compares with another, by their success rates on tasks.

    Places with one task, by `task_ids`, are no independent tasks; without these all are.
    """
    places = rates.keys() & other_rates.keys()
    differences = [rates[place] - other_rates[place] for place in places]
    num_better, num_worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    mean = sum(differences) / max(len(differences), 1)
    ids = None if task_ids is None else [[task_ids[place] for place in places]]
    interval = bootstrap_interval([differences], ids) if differences else (-1.0, 1.0)
    return Comparison(policy, other, len(differences), mean, *interval, num_better, num_worse)


def bootstrap_interval(
    differences: Sequence[Sequence[float]], task_ids: Sequence[Sequence[str]] | None = None
) -> tuple[float, float]:
    """Returns the 95 % interval of the mean of paired differences of success, in [-1, 1].

    `differences` are of the tasks of each seed. Percentiles of 10,000 draws, always the same: of
    seeds with replacement, and of each one's tasks, after half a task was added to each cell of the
    table of pairs (both succeed, one does, the other, neither; shared among the seeds), so that it
    holds for few tasks and where none differ. Of 50 tasks 35 better, none worse: 0.54 to 0.81.
    `task_ids` say which values are of one task: those are drawn together, also where several seeds
    have them (None: all are different tasks).
    Sources: Efron & Tibshirani 1993, "An Introduction to the Bootstrap", 13; Agresti & Min 2005,
    "Simple improved confidence intervals for comparing matched proportions", its normal
    approximation for one seed; Owen 2007, "The pigeonhole bootstrap", for tasks that seeds share.
    """
    num_seeds = len(differences)
    ids = task_ids or [[f"{s} {n}" for n in range(len(v))] for s, v in enumerate(differences)]
    sums = [_sum_by_task(*pair) for pair in zip(ids, differences, strict=True)]
    num_having = Counter(name for of_seed in sums for name in of_seed)
    shared = [name for name, num in num_having.items() if num > 1]
    is_shared = [num_having[name] > 1 for names in ids for name in names]
    part = sum(is_shared) / max(len(is_shared), 1)
    rng, totals = np.random.default_rng(0), np.zeros((_NUM_DRAWS, num_seeds, 2))
    num_drawn = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), _NUM_DRAWS)
    if shared:  # one draw of these for all seeds
        tasks = np.array([[of_seed.get(name, (0, 0)) for of_seed in sums] for name in shared])
        drawn = _draw_totals(rng, tasks, 2 * part, np.ones(_NUM_DRAWS, int))
        totals += num_drawn[..., None] * drawn
    for seed, of_seed in enumerate(sums):
        own = np.array([[values] for name, values in of_seed.items() if num_having[name] == 1])
        if len(own):
            added = 2 * (1 - part) / num_seeds
            totals[:, [seed]] += _draw_totals(rng, own, added, num_drawn[:, seed])
    means = totals[..., 0] / np.maximum(totals[..., 1], 1e-9)
    low, high = np.quantile((num_drawn * means).sum(axis=1) / num_seeds, (0.025, 0.975))
    return float(low), float(high)


def _sum_by_task(ids: Sequence[str], values: Sequence[float]) -> dict[str, tuple[float, int]]:
    """Returns by task the sum of its values, and how many it has."""
    sums: dict[str, tuple[float, int]] = {}
    for name, value in zip(ids, values, strict=True):
        total, num_values = sums.get(name, (0.0, 0))
        sums[name] = total + value, num_values + 1
    return sums


def _draw_totals(
    rng: np.random.Generator, tasks: _Sums, num_added: float, times: NDArray[np.int_]
) -> _Sums:
    """Returns sums and counts (draws, seeds, 2) of tasks drawn with replacement.

    `tasks` (tasks, seeds, 2) are each one's sum and count; in draw i they are drawn `times[i]`
    times over. `num_added` tasks are like the mean one in size, a quarter of them better, a quarter
    worse.
    """
    # Tasks that are alike need no draws of their own: how many are drawn of a kind is multinomial
    kinds, num_alike = np.unique(tasks.reshape(len(tasks), -1), axis=0, return_counts=True)
    size = tasks[..., 1].mean(axis=0)
    added = [np.stack([value * size, size], axis=-1).ravel() for value in (1.0, 0.0, -1.0)]
    weights = np.concatenate([num_alike, np.array([0.25, 0.5, 0.25]) * num_added])
    num_drawn = rng.multinomial(times * (len(tasks) + round(num_added)), weights / weights.sum())
    totals: _Sums = num_drawn @ np.concatenate([kinds, added])
    return totals.reshape(-1, *tasks.shape[1:])


def _rates_by_task(records: Sequence[EpisodeRecord]) -> dict[int, float]:
    """Returns the success rate of each task's episodes, by its position."""
    successes: defaultdict[int, list[bool]] = defaultdict(list)
    for record in records:
        successes[record.group_id].append(record.outcome is Outcome.SUCCESS)
    return {task: fmean(outcomes) for task, outcomes in successes.items()}
