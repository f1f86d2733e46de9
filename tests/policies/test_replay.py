"""A task's past success in a group that has none of its own (`training.num_replay_tasks`)."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_parts import flat_weights, make_group, make_learner, make_policy, make_trajectory

from agentpeft.policies.learning.algorithms import ALGORITHMS
from agentpeft.policies.learning.options.replay import Replay

PROMPT = [1, 2, 3]


def episodes(*tokens, prompt=PROMPT):
    """Episodes of one token each: 5 is the right one."""
    return [make_trajectory(prompt, [token], token == 5) for token in tokens]


def mixed(replay, group):
    (got,) = replay.choose_groups([group], 0)
    return [trajectory.token_ids.tolist() for trajectory in got.trajectories]


def test_a_group_of_failures_gets_its_tasks_last_success():
    replay = Replay(10)
    older, newer = make_trajectory(PROMPT, [5, 5], 1), make_trajectory(PROMPT, [5, 6], 1)
    replay.end_update([make_group(0, [*episodes(6), older])], [])
    replay.end_update([make_group(0, [newer, *episodes(7)])], [])
    assert mixed(replay, make_group(0, episodes(6, 7))) == [[6], [7], [5, 6]]
    assert replay.end_update([], []) == {"train/num_replayed": 1}
    assert mixed(replay, make_group(0, episodes(6, 5))) == [[6], [5]]
    assert mixed(replay, make_group(1, episodes(6, 7))) == [[6], [7]]
    assert mixed(replay, make_group(0, episodes(6, prompt=[1]))) == [[6]]
    assert replay.end_update([], []) == {"train/num_replayed": 0}


def test_the_oldest_tasks_are_forgotten():
    replay = Replay(2)
    for position in (0, 1, 0, 2):
        replay.end_update([make_group(position, episodes(5))], [])
    sizes = [len(mixed(replay, make_group(position, episodes(6)))) for position in range(3)]
    assert sizes == [2, 1, 2]
    off = Replay(0)
    off.end_update([make_group(0, episodes(5))], [])
    assert mixed(off, make_group(0, episodes(6))) == [[6]]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {"distill", "sft"}))
def test_it_is_learnt_from_as_a_member_weighed_by_its_truncated_ratio(algorithm):
    first, later = make_group(0, episodes(5, 6)), make_group(0, episodes(6, 7))
    by_hand = make_group(0, [*later.trajectories, first.trajectories[0]])
    terms = {"algorithm": algorithm, "lr": 1e-2, "num_epochs": 1}
    replaying = make_learner(make_policy(nonzero=True), num_replay_tasks=5, **terms)
    given = make_learner(make_policy(nonzero=True), importance_cap=2.0, **terms)
    for learner in (replaying, given):
        learner.update([first])
    metrics = replaying.update([later])
    given.update([by_hand])
    assert flat_weights(replaying).tobytes() == flat_weights(given).tobytes()
    assert metrics["train/num_replayed"] == 1
    assert (metrics["train/accuracy"], metrics["train/avg_reward"]) == (0, 0)
    assert metrics["train/num_tokens"] == 2
    recorded = [sample.trajectory for _, sample, _ in replaying.score_extremes()]
    assert [trajectory.token_ids.tolist() for trajectory in recorded] == [[6], [7]]


def test_a_task_that_was_solved_once_is_learnt_from_failures_alone_afterwards():
    rates = []
    for num_tasks in (0, 5):
        learner = make_learner(num_replay_tasks=num_tasks, lr=1e-2)
        learner.update([make_group(0, episodes(5, 6, 7, 8))])
        rates.append([probability_of_5(learner)])
        for _ in range(5):
            learner.update([make_group(0, episodes(6, 7, 8, 9))])
        rates[-1].append(probability_of_5(learner))
    assert rates[0][0] == rates[0][1]
    assert rates[1][1] > rates[1][0] + 0.05


def probability_of_5(learner):
    logits = learner.policy.model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    return logits.softmax(-1)[5].item()


def test_a_resumed_learner_replays_what_an_uninterrupted_one_does():
    terms = {"num_replay_tasks": 3, "lr": 1e-2, "algorithm": "gspo", "num_epochs": 2}
    whole = make_learner(**terms)
    turns = make_trajectory(PROMPT, [5, 9, 5], 1, [True, False, True], (1, 3))
    whole.update([make_group(0, [turns, *episodes(6)]), make_group(1, episodes(5, 6))])
    buffer = io.BytesIO()
    torch.save(whole.state_dict(), buffer)
    resumed = make_learner(**terms)
    resumed.policy.load_weights(whole.policy.adapter_weights())
    buffer.seek(0)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    failures = [make_group(0, episodes(6, 7)), make_group(1, episodes(8, 9))]
    metrics = [learner.update(failures) for learner in (whole, resumed)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["train/num_replayed"] == 2
    assert flat_weights(whole).tobytes() == flat_weights(resumed).tobytes()


def test_a_checkpoint_from_before_the_replay_is_read():
    learner = make_learner(num_replay_tasks=3)
    state = learner.state_dict()
    del state["replay"]
    learner.load_state_dict(state)


def test_a_remembered_success_holds_nothing_of_its_group():
    replay, whole = Replay(1), np.arange(9)
    success = replace(make_trajectory(PROMPT, [5], 1), token_ids=whole[5:6])
    replay.end_update([make_group(0, [success])], [])
    (group,) = replay.choose_groups([make_group(0, episodes(6))], 0)
    *_, kept = group.trajectories
    assert kept.token_ids.base is None and kept.token_ids.tolist() == [5]
