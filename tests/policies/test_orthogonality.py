"""O-LoRA's penalty on the overlap with earlier adapters (`lora.orthogonal_to`)."""

import numpy as np
import pytest
import torch
from learner_parts import make_policy, random_groups
from safetensors.numpy import load_file, save_file

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.options.orthogonality import Orthogonality
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import LoraSettings, Settings

FILE = "adapter_model.safetensors"


def a_weights(policy):
    names = zip(policy.adapter_weights(), policy.trainable_parameters(), strict=True)
    return [parameter for name, parameter in names if "lora_A" in name]


def save_earlier(folder, rows):
    """Saves an adapter whose A reads the given inputs of each layer, one a row."""
    policy = make_policy()
    with torch.no_grad():
        for a in a_weights(policy):
            a.zero_()
            for number, column in enumerate(rows):
                a[number, column] = 1.0
    policy.save(folder)
    return str(folder)


def make_lora(*folders):
    return LoraSettings(rank=4, alpha=8.0, orthogonal_to=folders)


def test_the_penalty_and_its_gradient_are_those_of_the_formula_by_hand(tmp_path):
    earlier = save_earlier(tmp_path / "a", [0, 1]), save_earlier(tmp_path / "b", [0, 2])
    policy = make_policy()
    for a in a_weights(policy):
        with torch.no_grad():
            a.zero_()
            a[0, 0], a[1, 1], a[1, 5], a[2, 6] = 2.0, 3.0, 7.0, 9.0
        a.grad = torch.ones_like(a)
    totals = Orthogonality(policy, make_lora(*earlier)).penalize()
    # A_a A^T has a 2 and a 3, A_b A^T has a 2; columns 5 and 6 are nobody's
    num_layers = len(a_weights(policy))
    assert num_layers == 14
    assert totals.loss == pytest.approx(0.5 * num_layers * (2**2 + 3**2 + 2**2))
    assert totals.compute_metrics()["train/orthogonality"] == pytest.approx(totals.loss)
    expected = torch.ones(a_weights(policy)[0].shape)
    expected[0, 0] += 0.5 * 2 * (2 + 2)
    expected[1, 1] += 0.5 * 2 * 3
    assert torch.allclose(a_weights(policy)[0].grad, expected)


def test_updates_turn_the_new_adapter_away_from_the_earlier_ones(tmp_path):
    earlier = save_earlier(tmp_path / "a", range(4))
    found = []
    for folders in ([earlier], []):
        settings = Settings(
            lora={"rank": 4, "alpha": 8.0, "orthogonal_to": folders},
            training={"algorithm": "grpo", "lr": 1e-2},
            env_runners={"max_new_tokens": 8},
        )
        learner = Learner(settings, make_policy())
        for _ in range(20):
            metrics = learner.update(random_groups())
        assert ("train/orthogonality" in metrics) == bool(folders)
        overlap = [a[:, :4].square().sum().item() for a in a_weights(learner.policy)]
        found.append(np.mean(overlap))
    assert found[0] < 0.2 * found[1]


def test_a_new_adapter_does_not_begin_as_the_earlier_one_did():
    def first_a(lora):
        base = PolicyBase(make_policy().model.unload(), None, "test")
        return a_weights(attach_lora(base, lora))[0]

    plain, again = first_a(make_lora()), first_a(make_lora())
    other = first_a(make_lora("earlier"))
    assert torch.equal(plain, again)
    assert not torch.equal(plain, other)


def test_adapters_of_other_layers_or_that_are_not_there_are_refused(tmp_path):
    folder = tmp_path / "a"
    save_earlier(folder, [0])
    with pytest.raises(CheckpointError, match="cannot be read"):
        Orthogonality(make_policy(), make_lora(str(tmp_path / "none")))
    with pytest.raises(SettingsError, match=r"has no .*lora_A.weight of 64 columns"):
        Orthogonality(make_policy(hidden=64), make_lora(str(folder)))
    weights = load_file(folder / FILE)
    kept = {name: weight for name, weight in weights.items() if "q_proj" not in name}
    save_file(kept, folder / FILE, {"format": "pt"})
    with pytest.raises(SettingsError, match=r"has no .*q_proj.lora_A.weight of 32 columns"):
        Orthogonality(make_policy(), make_lora(str(folder)))
