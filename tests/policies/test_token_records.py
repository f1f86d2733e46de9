"""Which episodes of an update are recorded token by token, and with which numbers."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from learner_parts import make_group, make_learner, make_policy, make_trajectory, random_groups

from agentpeft.policies.checkpointing.run_logs import append_episodes
from agentpeft.policies.learning.samples import Sample, choose_extremes, to_token_record
from agentpeft.policies.models.tiny import train_tokenizer
from agentpeft.policies.settings.config import TinySettings


def make_sample(advantages, trajectory=None, index=0):
    trajectory = trajectory or make_trajectory([1], [2, 3], 1)
    values = np.array(advantages, np.float32)
    return Sample(0, index, trajectory, values)


TOKENIZER = train_tokenizer(["ab"], TinySettings())
A, B, DIGIT = (TOKENIZER(text)["input_ids"][0] for text in "ab7")


def test_the_two_lowest_and_the_two_highest_advantages_are_chosen():
    samples = [make_sample([advantage] * 2) for advantage in (0, 3, -1, 1, -2, 2)]
    chosen = [float(sample.advantages[0]) for sample in choose_extremes(samples)]
    assert chosen == [-2, -1, 2, 3]
    assert len(choose_extremes(samples[:3])) == 3


def test_a_record_tells_tokens_mask_advantages_and_ratios():
    other = make_trajectory([1], [2], 0)
    played = make_trajectory([DIGIT, DIGIT], [A, B, A], 1, mask=[1, 0, 1], ends=(1, 3))
    logprobs = np.log([0.5, 1, 0.25]).astype(np.float32)
    played = replace(played, sampling_logprobs=logprobs)
    updated = np.log([0.25, 0.5]).astype(np.float32)
    group = make_group(5, [other, played])
    sample = make_sample([0.5, -0.5], played, index=1)
    record = to_token_record(group, sample, updated, TOKENIZER)
    assert (record.group_id, record.sample, record.prompt) == (5, 1, "77")
    assert record.tokens == ("a", "b", "a") and record.loss_mask == (1, 0, 1)
    assert record.advantages == (0.5, -0.5) and record.ratios == (0.5, 2.0)
    assert record.sampling_logprobs == pytest.approx((math.log(0.5), math.log(0.25)))


def test_an_update_makes_good_tokens_likelier_and_bad_ones_less_likely():
    learner = make_learner(make_policy(nonzero=True), lr=1e-3)
    groups = random_groups()
    assert learner.score_extremes() == []
    learner.update(groups)
    assert len(learner.score_extremes()) == 4
    before = make_learner(make_policy(nonzero=True), lr=1e-12)
    before.update(groups)
    for new, old in zip(learner.score_extremes(), before.score_extremes(), strict=True):
        (_, sample, logprobs), (_, _, unchanged) = new, old
        assert np.sign((logprobs - unchanged).sum()) == np.sign(sample.advantages.sum())


def test_records_are_lines_of_json(tmp_path):
    played = replace(make_trajectory([1], [2, 3], 1), sampling_logprobs=np.zeros(2, np.float32))
    sample, updated = make_sample([0, 0], played), np.zeros(2, np.float32)
    record = to_token_record(make_group(0, [played]), sample, updated, TOKENIZER)
    append_episodes(tmp_path / "tokens.jsonl", 3, [record])
    line = json.loads((tmp_path / "tokens.jsonl").read_text())
    assert (line["iteration"], line["ratios"]) == (3, [1.0, 1.0])
    assert line["loss_mask"] == [1, 1]
