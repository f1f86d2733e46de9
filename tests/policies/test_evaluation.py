from itertools import combinations
from statistics import fmean

import pytest

from agentpeft.envs import Outcome
from agentpeft.policies.loop.evaluation import compute_success_metrics, pass_at_k, wilson_interval
from agentpeft.policies.messages import EpisodeRecord


def record(group_id, outcome, skills=("add",), sample=0):
    return EpisodeRecord(
        group_id=group_id,
        sample=sample,
        task_id=f"task-{group_id}",
        skills=skills,
        adapter_version=0,
        outcome=outcome,
        episode_return=float(outcome is Outcome.SUCCESS),
        num_turns=2,
        num_tokens=10 + group_id,
        messages=(),
    )


def test_wilson_interval_is_that_of_the_tables():
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_pass_at_k_is_the_share_of_subsets_with_a_success(k):
    subsets = list(combinations([True, True, False, False, False], k))
    assert pass_at_k(5, 2, k) == pytest.approx(fmean(any(subset) for subset in subsets))


def test_rates_are_by_outcome_and_by_skill():
    metrics = compute_success_metrics(
        [
            record(0, Outcome.SUCCESS),
            record(1, Outcome.SUCCESS, skills=("add", "carry")),
            record(2, Outcome.FAILURE, skills=("carry",)),
            record(3, Outcome.TURN_LIMIT, skills=()),
        ]
    )
    assert metrics["success_rate"] == metrics["avg_reward"] == 0.5
    assert metrics["success_rate_low"] < 0.5 < metrics["success_rate_high"]
    assert (metrics["skill/add"], metrics["skill/carry"]) == (1.0, 0.5)
    assert (metrics["outcome/success"], metrics["outcome/turn_limit"]) == (0.5, 0.25)
    assert (metrics["avg_turns"], metrics["avg_tokens"], metrics["num_episodes"]) == (2, 11.5, 4)
    assert not any(name.startswith("pass_at") for name in metrics)


def test_pass_at_k_is_averaged_over_tasks():
    outcomes = {0: "sfff", 1: "ffff", 2: "ssss"}
    records = [
        record(task, Outcome.SUCCESS if letter == "s" else Outcome.FAILURE, sample=sample)
        for task, letters in outcomes.items()
        for sample, letter in enumerate(letters)
    ]
    metrics = compute_success_metrics(records)
    got = [metrics[f"pass_at/{k}"] for k in (1, 2, 4)]
    assert got == pytest.approx([(0.25 + 1) / 3, (0.5 + 1) / 3, 2 / 3])


def test_no_episodes_have_no_success_rate():
    assert compute_success_metrics([]) == {"num_episodes": 0.0}
