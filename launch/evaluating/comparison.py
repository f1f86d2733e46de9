"""How two policies compare on the tasks that both have played."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np

from agentpeft.envs import Outcome
from agentpeft.policies.messages import EpisodeRecord

_NUM_DRAWS = 10_000


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
    return [compare(*pair, rates[pair[0]], rates[pair[1]]) for pair in combinations(rates, 2)]


def compare(
    policy: str, other: str, rates: Mapping[int, float], other_rates: Mapping[int, float]
) -> Comparison:
    """Returns how a policy compares with another, by their success rates on tasks."""
    differences = [rates[task] - other_rates[task] for task in rates.keys() & other_rates.keys()]
    num_better, num_worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    mean = sum(differences) / max(len(differences), 1)
    interval = bootstrap_interval([differences])
    return Comparison(policy, other, len(differences), mean, *interval, num_better, num_worse)


def bootstrap_interval(differences: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean of paired differences of success, in [-1, 1].

    `differences` are of the tasks of each seed. Percentiles of 10,000 draws, always the same: of
    seeds with replacement, and of each one's tasks, after half a task was added to each cell of the
    table of pairs (both succeed, one does, the other, neither; shared among the seeds), so that it
    holds for few tasks and where none differ. Of 50 tasks 35 better, none worse: 0.54 to 0.81.
    Sources: Efron & Tibshirani 1993, "An Introduction to the Bootstrap", 13; Agresti & Min 2005,
    "Simple improved confidence intervals for comparing matched proportions", its normal
    approximation for one seed.
    """
    # A mean needs only how often each seed and each value is drawn, which is multinomial
    rng, means, num_seeds = np.random.default_rng(0), np.zeros(_NUM_DRAWS), len(differences)
    num_drawn = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), _NUM_DRAWS)
    for of_seed, times in zip(differences, num_drawn.T, strict=True):
        values, places = np.unique([*of_seed, 1.0, 0.0, 0.0, -1.0], return_inverse=True)
        weights = np.repeat([1.0, 0.5 / num_seeds], [len(of_seed), 4])
        chances = np.bincount(places, weights) / weights.sum()
        size = len(of_seed) + round(2 / num_seeds)
        means += rng.multinomial(times * size, chances) @ values / size
    low, high = np.quantile(means / num_seeds, (0.025, 0.975))
    return float(low), float(high)


def _rates_by_task(records: Sequence[EpisodeRecord]) -> dict[int, float]:
    """Returns the success rate of each task's episodes, by its position."""
    successes: defaultdict[int, list[bool]] = defaultdict(list)
    for record in records:
        successes[record.group_id].append(record.outcome is Outcome.SUCCESS)
    return {task: fmean(outcomes) for task, outcomes in successes.items()}
