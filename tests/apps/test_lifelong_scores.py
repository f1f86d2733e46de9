"""What accuracy matrices say, by hand; and the statistics of several courses."""

import itertools
from statistics import fmean

import numpy as np
import pytest
import torch

from agentpeft.apps.lifelong.banks import count_pairs
from agentpeft.apps.lifelong.comparison import (
    bootstrap_interval,
    correct_by_holm,
    sign_flip_p_value,
)
from agentpeft.apps.lifelong.policy_drift import token_divergences
from agentpeft.apps.lifelong.scores import compute_kl_new, compute_kl_old, compute_scores
from agentpeft.launch.evaluating.adapter_bank import PromptRouter

MATRIX = [[0.9, 0.2, 0.1], [0.6, 0.8, 0.3], [0.7, 0.5, 0.6]]
BASE, EXPERT = [0.3, 0.1, 0.2], [0.9, 0.9, 0.8]


def test_every_figure_of_a_matrix_is_what_its_formula_says_by_hand():
    assert compute_scores(MATRIX, BASE, EXPERT) == pytest.approx(
        {
            "acc": (0.7 + 0.5 + 0.6) / 3,
            "aia": (0.9 + (0.6 + 0.8) / 2 + (0.7 + 0.5 + 0.6) / 3) / 3,
            "bwt": ((0.7 - 0.9) + (0.5 - 0.8)) / 2,
            "fwt": ((0.2 - 0.1) + (0.3 - 0.2)) / 2,
            "forgetting": ((0.9 - 0.7) + (0.8 - 0.5)) / 2,
            "intransigence": ((0.9 - 0.9) + (0.9 - 0.8) + (0.8 - 0.6)) / 3,
            "min_acc": (0.6 + 0.5) / 2,
        }
    )


def test_forgetting_counts_from_the_best_that_there_was_and_bwt_from_the_diagonal():
    rises_then_falls = [[0.4, 0.0, 0.0], [0.9, 0.5, 0.0], [0.4, 0.5, 0.5]]
    scores = compute_scores(rises_then_falls, [0.0] * 3, [1.0] * 3)
    assert scores["bwt"] == pytest.approx(0.0)
    assert scores["forgetting"] == pytest.approx((0.9 - 0.4) / 2)
    assert scores["min_acc"] == pytest.approx((0.4 + 0.5) / 2)


def test_one_row_for_all_stages_at_once_has_a_mean_alone():
    scores = compute_scores([[0.5, 0.7]], [0.1, 0.1], [0.6, 0.6])
    assert scores.pop("acc") == pytest.approx(0.6)
    assert set(scores.values()) == {None}


def test_divergences_are_told_apart_by_whose_tasks_they_are_of():
    divergences = [[0.3, 1.0], [0.1, 0.5, 2.0], [0.0, 0.0, 0.6, 6.0]]
    assert compute_kl_old(divergences) == pytest.approx((0.3 + 0.3 + 0.2) / 3)
    assert compute_kl_new(divergences) == pytest.approx((1.0 + 2.0 + 6.0) / 3)


def test_a_divergence_is_of_whole_distributions_and_of_the_first_to_the_second():
    before, after = torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([[0.25, 0.75], [0.9, 0.1]])
    shifted = before.log() + torch.tensor([[3.0], [-1.0]])  # logits need not be normalised
    expected = [0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75), 0.0]
    assert token_divergences(shifted, after.log()).tolist() == pytest.approx(expected, abs=1e-6)
    back = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    assert token_divergences(after.log(), before.log())[0].item() == pytest.approx(back, abs=1e-6)


def test_a_sign_flip_test_counts_all_choices_of_signs():
    differences = [0.3, -0.1, 0.2, 0.4]
    as_far = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= 0.8 - 1e-9
        for signs in itertools.product((1, -1), repeat=4)
    ]
    assert sign_flip_p_value(differences) == fmean(as_far)
    assert sign_flip_p_value([0.1] * 6) == 2 / 64
    assert sign_flip_p_value([0.0, 0.0]) == 1.0
    assert sign_flip_p_value([]) == 1.0


def test_many_pairs_are_tested_by_random_signs():
    rng = np.random.default_rng(0)
    assert sign_flip_p_value(rng.normal(0.0, 1.0, 40).tolist()) > 0.05
    assert sign_flip_p_value(rng.normal(2.0, 1.0, 40).tolist()) == pytest.approx(1 / 20_000)


def test_holm_multiplies_the_smallest_most_and_never_goes_back_or_over_one():
    corrected = correct_by_holm({"a": 0.02, "b": 0.01, "c": 0.5, "d": 0.9})
    assert corrected == pytest.approx({"b": 0.04, "a": 0.06, "c": 1.0, "d": 1.0})
    assert correct_by_holm({"a": 0.01, "b": 0.011}) == pytest.approx({"a": 0.02, "b": 0.02})
    assert correct_by_holm({}) == {}


def test_a_bootstrap_interval_holds_the_mean_and_narrows_with_more_values():
    few = [[0.1], [0.5], [0.9]]
    many = [0.1, 0.5, 0.9] * 20
    assert bootstrap_interval([[0.4], [0.4]]) == (0.4, 0.4)
    low, high = bootstrap_interval(few)
    assert 0.1 <= low < 0.5 < high <= 0.9
    narrow = bootstrap_interval([[value] for value in many])
    assert low < narrow[0] < 0.5 < narrow[1] < high
    half = 1.96 * np.std(many) / len(many) ** 0.5  # by the normal approximation
    assert narrow == pytest.approx((0.5 - half, 0.5 + half), abs=0.01)
    assert bootstrap_interval([many]) == pytest.approx((0.5 - half, 0.5 + half), abs=0.01)


def test_courses_of_a_seed_are_no_seeds():
    """What does not depend on the order is measured once a seed, however many orders there are."""
    once, often = [[0.2], [0.6], [0.7]], [[0.2] * 5, [0.6] * 5, [0.7] * 5]
    assert bootstrap_interval(often) == pytest.approx(bootstrap_interval(once), abs=0.01)
    low, high = bootstrap_interval([[0.0, 0.4]] * 3)  # of courses alone
    assert (low, high) == pytest.approx((0.0, 0.4), abs=0.07) and low < high


def test_a_router_tells_prompts_apart_by_what_stands_in_them():
    examples = {"sums": ["add 1 2", "add 3 40"], "products": ["times 1 2", "times 4"]}
    router = PromptRouter({name: count_pairs(own) for name, own in examples.items()})
    assert [router.find_stage(p) for p in ("add 7 8", "times 7 8")] == ["sums", "products"]
    assert PromptRouter({"only": {}}).find_stage("xyz") == "only"
