"""Evaluation: success rates of played episodes, and whether the tasks are held out."""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from math import comb, sqrt
from statistics import fmean
from typing import Any

from agentpeft.envs import EpisodeOptions, Outcome
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import drawn_kwargs

logger = logging.getLogger(__name__)
_WITHOUT_TASKS = {*EpisodeOptions.__annotations__, "prompt", "split"}
"""Arguments of environments that do not say what the tasks are, and what says which half."""


def wilson_interval(num_successes: int, num_trials: int, z: float = 1.96) -> tuple[float, float]:
    """Returns a confidence interval for a success rate, 95 % by default: 8 of 10 -> (.490, .943).

    Source: Wilson 1927. Without trials nothing is known: (0, 1).
    """
    if num_trials == 0:
        return 0.0, 1.0
    rate, spread = num_successes / num_trials, z * z / num_trials
    centre = rate + spread / 2
    half = z * sqrt(rate * (1 - rate) / num_trials + spread / (4 * num_trials))
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))


def pass_at_k(num_samples: int, num_successes: int, k: int) -> float:
    """Returns the chance that k of a task's samples hold a success: 1 of 4, k = 2 -> 0.5.

    Source: Chen et al. 2021 (Codex), eq. 1: unbiased, without replacement.
    """
    return 1.0 - comb(num_samples - num_successes, k) / comb(num_samples, k)


def compute_success_metrics(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Returns flat metrics of episodes; of none, only `num_episodes` 0.

    `success_rate` with its 95 % interval (`_low`, `_high`), means, shares by `outcome/<name>`,
    success rates by `skill/<name>`, and `pass_at/<k>` for k = 1, 2, 4, … up to every task's
    samples. The interval takes episodes as independent, which samples of one task are not.
    """
    if not records:
        return {"num_episodes": 0.0}
    wins = [record.outcome is Outcome.SUCCESS for record in records]
    low, high = wilson_interval(sum(wins), len(wins))
    metrics = {
        "num_episodes": float(len(records)),
        "success_rate": fmean(wins),
        "success_rate_low": low,
        "success_rate_high": high,
        "avg_reward": fmean(record.episode_return for record in records),
        "avg_turns": fmean(record.num_turns for record in records),
        "avg_tokens": fmean(record.num_tokens for record in records),
    }
    outcomes = Counter(record.outcome.value for record in records)
    metrics |= {f"outcome/{name}": n / len(records) for name, n in sorted(outcomes.items())}
    by_task: defaultdict[int, list[bool]] = defaultdict(list)
    for record, win in zip(records, wins, strict=True):
        by_task[record.group_id].append(win)
    return metrics | compute_skill_metrics(records) | _pass_metrics(list(by_task.values()))


def compute_skill_metrics(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Returns `skill/<name>`, the success rate of the episodes whose task has the skill."""
    by_skill: defaultdict[str, list[bool]] = defaultdict(list)
    for record in records:
        for skill in record.skills:
            by_skill[skill].append(record.outcome is Outcome.SUCCESS)
    return {f"skill/{name}": fmean(by_skill[name]) for name in sorted(by_skill)}


def _pass_metrics(tasks: Sequence[Sequence[bool]]) -> dict[str, float]:
    most = min(len(task) for task in tasks)
    if most == 1:
        return {}
    return {
        f"pass_at/{k}": fmean(pass_at_k(len(task), sum(task), k) for task in tasks)
        for k in sorted({2**i for i in range(most.bit_length())} | {most})
    }


def warn_unless_held_out(settings: Settings) -> None:
    """Logs one line where evaluation draws from the tasks that training draws from."""
    if settings.evaluation.num_tasks > 0 and not is_held_out(settings):
        logger.warning(
            "evaluation is not held out: it draws from the tasks that training draws from "
            "(eval/num_seen_tasks counts those that both had); where %s has splits, set "
            'environment.kwargs.split="train" and evaluation.env_kwargs.split="test"',
            settings.environment.id,
        )


def is_held_out(settings: Settings) -> bool:
    """Returns whether training cannot draw the tasks of evaluation.

    It can where both have the same generator, and neither a half of its own.

    The sources of a mixture are looked at one by one.
    Tasks of files are not looked at: the same file is refused elsewhere.
    """
    evaluated = drawn_kwargs(settings.held_out_kwargs)
    trained = [kwargs for stage in settings.stage_kwargs for kwargs in drawn_kwargs(stage)]
    return not any(_are_shared(*pair) for pair in product(trained, evaluated))


def _are_shared(trained: Mapping[str, Any], held_out: Mapping[str, Any]) -> bool:
    tasks, others = (
        {name: value for name, value in kwargs.items() if name not in _WITHOUT_TASKS}
        for kwargs in (trained, held_out)
    )
    splits = [kwargs.get("split") for kwargs in (trained, held_out)]
    is_divided = None not in splits and splits[0] != splits[1]
    return trained.get("data") is None and tasks == others and not is_divided
