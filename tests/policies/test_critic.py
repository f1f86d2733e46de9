"""A critic in the learner: its values and gradients against a few lines of torch, and learning."""

import io
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from learner_parts import (
    act,
    flat_weights,
    gradients,
    make_group,
    make_learner,
    make_policy,
    make_trajectory,
    random_groups,
)
from safetensors.numpy import load_file

from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.loop.resuming import restore_learner
from agentpeft.policies.messages import Trajectory
from agentpeft.policies.workers.learner_group import STATE

every_kind = pytest.mark.parametrize("kind", ["shared", "separate"])
TERMS = {"algorithm": "ppo", "max_grad_norm": 1e9, "gamma": 0.9, "lambda_": 0.8}


def make_critic_learner(kind, learners=None, checkpointing=False, **training):
    """A learner whose adapters and value head are not zero."""
    policy = make_policy(nonzero=True, checkpointing=checkpointing)
    learner = make_learner(policy, learners, **{**TERMS, "critic": kind, **training})
    torch.manual_seed(1)
    state = learner.state_dict()
    for weight in state["critic"].values():
        weight.add_(torch.randn_like(weight) * 0.05)
    learner.load_state_dict(state)
    return learner


def states_before_turns(learner, kind, trajectory):
    """What the output layer reads at the last token before each turn, from one plain pass."""
    ids = torch.tensor(np.concatenate([trajectory.prompt_ids, trajectory.token_ids]))[None]
    model, places = learner.policy.model, []
    for turn in np.split(np.flatnonzero(trajectory.loss_mask), [trajectory.turn_ends[0]]):
        places += [len(trajectory.prompt_ids) + turn[0] - 1] if len(turn) else []
    if kind == "separate":
        model.set_adapter("critic")
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0, places]
    model.set_adapter("default")
    return states


@pytest.mark.parametrize("learners", [{}, {"max_tokens_per_micro_batch": 1}])
@every_kind
def test_values_and_their_gradient_are_those_of_each_sequence_alone(kind, learners):
    learner = make_critic_learner(kind, learners, num_epochs=1, gamma=1.0, lambda_=1.0)
    weights = learner.state_dict()["critic"]
    head, bias = weights["value_head.weight"][0], weights["value_head.bias"]
    groups = random_groups()
    states = [
        (states_before_turns(learner, kind, t), t.episode_return)
        for group in groups for t in group.trajectories
    ]  # fmt: skip
    x = torch.cat([s for s, _ in states])
    y = torch.cat([torch.full((len(s),), r) for s, r in states])
    errors = x @ head + bias - y  # gamma and lambda 1: the targets are the returns to go
    metrics = learner.update(groups)
    got = learner._critic.parameters()[0].grad[0]
    expected = 0.5 * (2 * errors[:, None] * x).mean(0)
    assert metrics["train/value_loss"] == pytest.approx(errors.square().mean().item(), rel=1e-4)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)


def all_gradients(learner, groups):
    own = gradients(learner, groups)
    return torch.cat([own, *(p.grad.flatten() for p in learner._critic.parameters())])


@every_kind
@pytest.mark.parametrize("terms", [{}, {"algorithm": "a2c", "kl_coeff": 0.1}])
@pytest.mark.parametrize("learners", [{"max_tokens_per_micro_batch": n} for n in (30, 1)])
def test_cutting_into_micro_batches_changes_nothing(kind, terms, learners):
    whole, cut = (
        all_gradients(make_critic_learner(kind, part, **terms), random_groups())
        for part in ({}, learners)
    )
    assert torch.allclose(whole, cut, rtol=1e-4, atol=1e-5)


@every_kind
def test_gradient_checkpointing_gives_the_same_gradients(kind):
    plain = all_gradients(make_critic_learner(kind), random_groups())
    learner = make_critic_learner(kind, {"gradient_checkpointing": True}, checkpointing=True)
    assert torch.allclose(plain, all_gradients(learner, random_groups()), rtol=1e-4, atol=1e-5)


@every_kind
def test_only_a_shared_critic_trains_the_policys_adapter(kind):
    """Ten times the rewards and values: the same whitened advantages, another value loss."""
    policy = []
    for scale in (1.0, 10.0):
        learner = make_critic_learner(kind, num_epochs=1)
        state = learner.state_dict()
        for name in ("value_head.weight", "value_head.bias"):
            state["critic"][name].mul_(scale)
        learner.load_state_dict(state)
        policy.append(gradients(learner, random_groups(success=scale)))
    is_same = torch.allclose(*policy, rtol=1e-2, atol=1e-4)
    assert is_same == (kind == "separate")


@pytest.mark.parametrize("changed", [{"gamma": 0.5}, {"lambda_": 0.1}])
def test_each_number_of_the_critic_matters(changed):
    terms = {"num_epochs": 3, "lr": 1e-2}
    before, after = (
        all_gradients(make_critic_learner("shared", **terms, **more), random_groups())
        for more in ({}, changed)
    )
    assert not torch.allclose(before, after, atol=1e-4)


@pytest.mark.parametrize(
    ("terms", "passes"),
    [
        ({"algorithm": "ppo", "critic": None}, 3),
        ({"algorithm": "ppo", "critic": "shared"}, 3),
        ({"algorithm": "ppo", "critic": "separate"}, 6),
        ({"algorithm": "a2c", "critic": "shared"}, 2),
        ({"algorithm": "a2c", "critic": "separate"}, 3),
    ],
)
def test_values_cost_no_pass_where_one_is_taken_anyway(terms, passes):
    learner = make_learner(**terms)
    calls = []
    learner.policy.model.register_forward_pre_hook(lambda *_: calls.append(1))
    learner.update(random_groups())
    assert len(calls) == passes


@every_kind
def test_a_new_critic_predicts_0_and_the_policys_logits_are_what_they_were(kind):
    metrics = make_learner(algorithm="ppo", critic=kind, num_epochs=1).update(random_groups())
    assert metrics["train/value_mean"] == 0
    assert metrics["train/clip_fraction"] == 0


@every_kind
def test_a_critic_learns_what_its_prompts_are_worth(kind):
    learner = make_learner(algorithm="a2c", critic=kind, lr=1e-2)
    prompts = {2: 1.0, 3: -1.0}
    groups = [
        make_group(i, [make_trajectory([1, p], [a], r) for a in (5, 6)])
        for i, (p, r) in enumerate(prompts.items())
    ]
    metrics = [learner.update(groups) for _ in range(25)]
    assert metrics[0]["train/explained_variance"] == 0
    assert metrics[-1]["train/explained_variance"] > 0.95
    assert metrics[-1]["train/value_loss"] < 0.1 < metrics[0]["train/value_loss"]


@every_kind
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_with_a_critic_the_rewarded_second_turn_is_learnt(algorithm, kind):
    learner = make_learner(algorithm=algorithm, critic=kind, lr=1e-2)
    rng, before = np.random.default_rng(0), probability_of_6(learner)
    for _ in range(12):
        answers = np.where(rng.random((4, 8)) < probability_of_6(learner), 6, 5)
        learner.update([make_group(i, list(map(play, row))) for i, row in enumerate(answers)])
    assert before < 0.1 and probability_of_6(learner) > 0.8


def play(answer):
    """A first turn of one token, 4, an observation, 2, and an answer that is right if it is 6."""
    return make_trajectory([1, 3], [4, 2, answer], answer == 6, [1, 0, 1], (1, 3))


def probability_of_6(learner):
    """Of the two possible answers, 5 and 6, in the second turn."""
    logits = learner.policy.model(input_ids=torch.tensor([[1, 3, 4, 2]])).logits[0, -1]
    return logits[[6, 5]].softmax(-1)[0].item()


@every_kind
def test_a_resumed_learner_equals_an_uninterrupted_one_to_the_bit(kind):
    terms = {"algorithm": "ppo", "critic": kind, "num_minibatches": 2, "kl_coeff": 0.1}
    learner, resumed = make_learner(**terms), make_learner(**terms)
    learner.update(random_groups())
    restore_learner(act(resumed), act(learner).to_files())
    metrics = [one.update(random_groups(seed=1)) for one in (learner, resumed)]
    assert metrics[0] == metrics[1]
    assert flat_weights(learner).tobytes() == flat_weights(resumed).tobytes()
    mine, others = (one.state_dict()["critic"] for one in (learner, resumed))
    assert mine and all(torch.equal(mine[name], others[name]) for name in mine)


def test_a_checkpoint_of_a_gpu_is_resumed_without_one():
    learner, resumed = (make_learner(algorithm="ppo", critic="shared") for _ in range(2))
    learner.update(random_groups())
    files = act(learner).to_files()
    on_gpu = io.BytesIO()
    with ZipFile(io.BytesIO(files[STATE])) as archive, ZipFile(on_gpu, "w") as other:
        for name in archive.namelist():  # the pickle says once where all tensors lay
            text = archive.read(name)
            other.writestr(name, text.replace(b"X\3\0\0\0cpu", b"X\6\0\0\0cuda:0"))
    restore_learner(act(resumed), {**files, STATE: on_gpu.getvalue()})
    metrics = [one.update(random_groups(seed=1)) for one in (learner, resumed)]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("other", [None, "separate"])
def test_a_checkpoint_of_another_critic_is_refused(other):
    files = act(make_learner(algorithm="ppo", critic="shared")).to_files()
    with pytest.raises(CheckpointError, match=r"training\.critic"):
        restore_learner(act(make_learner(algorithm="ppo", critic=other)), files)


@every_kind
def test_the_adapter_that_is_delivered_or_saved_has_nothing_of_the_critic(kind, tmp_path):
    plain, learner = make_learner(algorithm="ppo"), make_learner(algorithm="ppo", critic=kind)
    learner.update(random_groups())
    learner.policy.save(tmp_path)
    names = plain.adapter().weights.keys()
    assert learner.adapter().weights.keys() == names
    assert load_file(tmp_path / "adapter_model.safetensors").keys() == names
    assert not any("critic" in path.name for path in tmp_path.iterdir())


def test_episodes_without_a_turn_have_no_value_and_do_no_harm():
    empty = make_trajectory([1, 2], [], 0, ends=())
    empty = Trajectory(**{**vars(empty), "turn_rewards": ()})
    groups = random_groups()
    without_turns = make_group(9, [empty, empty])
    assert make_learner(algorithm="a2c").update([without_turns])["train/num_skipped_updates"] == 1
    with_them, without = (
        all_gradients(make_critic_learner("shared"), g) for g in ([*groups, without_turns], groups)
    )
    assert torch.allclose(with_them, without, atol=1e-6)
