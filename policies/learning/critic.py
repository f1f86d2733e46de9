"""The critic: predicts, where each turn begins, the return that is still to come.

A turn's value is read off the last token before its first sampled one. That token predicts the
sampled one, so its state is at hand. Values are computed for every sampled token, as
log-probabilities are; only that of each turn's first token counts (`CriticTargets.turn_starts`).
Each turn of an episode has its own advantage, by GAE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from agentpeft.policies.learning.advantages import whiten
from agentpeft.policies.learning.algorithms import AlgorithmSpec
from agentpeft.policies.learning.objective import Totals, join, spread
from agentpeft.policies.learning.passes.micro_batches import MicroBatch
from agentpeft.policies.learning.passes.model_runner import POLICY_PASS, Pass
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import Floats, Ids
from agentpeft.policies.models.lora.attach_lora import LoraPolicy, Policy
from agentpeft.policies.settings.config import Settings, TrainingSettings

_ADAPTER = "critic"
_LOSS_COEFF = 0.5  # PPO2's: with a shared critic, the policy's loss leads


@dataclass(frozen=True)
class CriticTargets:
    """What the critic learns from, (N,) each; every token carries the numbers of its turn.

    `targets`: advantage plus old value of the turn. `turn_starts`: 1 for the first token of each
    turn, where the turn's value is predicted, else 0; a loss counts these tokens only.
    """

    old_values: Floats
    targets: Floats
    turn_starts: Floats


class Critic:
    """A linear head, zero at first, on the states that the model's output layer reads.

    "shared": the head reads the policy's own pass, and the value loss trains the policy's adapter
    too. "separate": it reads a second pass, with the critic's own adapter on the same frozen base.
    """

    def __init__(self, settings: Settings, spec: AlgorithmSpec, policy: Policy) -> None:
        """Adds an adapter to the policy's model, if it is separate."""
        self.estimate_by_turn = partial(estimate_by_turn, spec=spec, training=settings.training)
        self.compute_metrics = compute_critic_metrics
        output = cast(nn.Linear, policy.base.model.get_output_embeddings())  # type: ignore[no-untyped-call]
        width, device = output.weight.shape[1], output.weight.device
        self._head = nn.utils.skip_init(nn.Linear, width, 1, device=device)  # type: ignore[no-untyped-call]
        self._weights: dict[str, nn.Parameter] = {}
        for name, weight in self._head.named_parameters():
            nn.init.zeros_(weight)
            self._weights[f"value_head.{name}"] = weight
        self.passes = [Pass(has_logits=True, has_values=True)]
        if spec.critic == "separate":
            policy = cast(LoraPolicy, policy)  # with all weights the settings refuse it
            with torch.random.fork_rng():
                torch.manual_seed(settings.seed)
                self._weights |= policy.add_adapter(_ADAPTER)
            adapter = partial(policy.running, _ADAPTER)
            self.passes = [POLICY_PASS, Pass(has_logits=False, has_values=True, adapter=adapter)]

    def parameters(self) -> list[nn.Parameter]:
        """Returns what is trained, always in the same order."""
        return list(self._weights.values())

    def compute_values(self, states: Tensor, batch: MicroBatch) -> Tensor:
        """Returns the values (N,), float32, from the states (U, H) of the needed positions."""
        values: Tensor = self._head(states.float())[batch.slots, 0]
        return values

    def compute_loss(self, values: Tensor, samples: Sequence[Sample]) -> tuple[Tensor, Totals]:
        """Returns the loss of a micro-batch's values (N,), and its totals."""
        critics = [sample.critic for sample in samples if sample.critic is not None]
        turn_starts = join([c.turn_starts for c in critics], values.device)
        errors = (values - join([c.targets for c in critics], values.device)).square()
        weights = turn_starts * spread([s.turn_weight for s in samples], samples, values.device)
        loss = _LOSS_COEFF * (errors * weights).sum()
        totals = Totals(loss.item())
        totals.count("value_loss", errors * turn_starts, int(turn_starts.sum().item()))
        return loss, totals

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the weights, by name."""
        return {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads weights of the same names."""
        for name, weight in self._weights.items():
            weight.copy_(state[name])


def compute_gae(rewards: Floats, values: Floats, gamma: float, lambda_: float) -> Floats:
    """Returns the advantages of an episode's turns from their rewards and values, all (turns,).

    A_t = delta_t + gamma lambda A_t+1, with delta_t = r_t + gamma V_t+1 - V_t; after the last turn
    both A and V are 0. Rewards [0, 1], values [.5, .5], gamma 1, lambda 0 -> [0, .5].
    Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using GAE", eq. 16.
    """
    advantages = rewards + gamma * np.append(values, 0)[1:] - values
    for turn in reversed(range(len(advantages) - 1)):
        advantages[turn] += gamma * lambda_ * advantages[turn + 1]
    return advantages.astype(np.float32)


def estimate_by_turn(
    samples: Sequence[Sample], spec: AlgorithmSpec, training: TrainingSettings
) -> list[Sample]:
    """Returns the samples with advantages and the critic's targets, from `Sample.old.values`.

    All tokens of a turn share its advantage.
    """
    by_gae: list[Floats] = []
    turns: list[Ids] = []
    critics: list[CriticTargets] = []
    for sample in samples:
        old_values, trajectory = cast(Floats, sample.old.values), sample.trajectory
        turn_ends = np.array(trajectory.turn_ends)
        turn = np.searchsorted(turn_ends, np.flatnonzero(trajectory.loss_mask), side="right")
        is_start = np.diff(turn, prepend=-1) > 0
        turn_values = old_values[is_start]
        rewards = np.array(trajectory.turn_rewards, np.float32)
        gae = compute_gae(rewards, turn_values, training.gamma, training.lambda_)
        targets = (gae + turn_values)[turn]
        critics.append(CriticTargets(old_values, targets, is_start.astype(np.float32)))
        by_gae.append(gae)
        turns.append(turn)
    flat = np.concatenate(by_gae)
    flat = whiten(flat) if spec.whitens_advantages else flat
    advantages = np.split(flat, np.cumsum([len(gae) for gae in by_gae])[:-1])
    return [
        replace(sample, advantages=of_turns[turn], critic=critic)
        for sample, of_turns, turn, critic in zip(samples, advantages, turns, critics, strict=True)
    ]


def compute_critic_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns the turns' mean value before the update, and how well values explained the targets.

    The explained variance is 1 - var(target - value) / var(target): 1 at best, 0 for a constant,
    NaN if all targets are equal. Returns nothing if there is nothing to learn from.
    """
    critic = [sample.critic for sample in samples if sample.critic is not None]
    if not critic:
        return {}
    values = np.concatenate([c.old_values[c.turn_starts > 0] for c in critic])
    targets = np.concatenate([c.targets[c.turn_starts > 0] for c in critic])
    unexplained = np.var(targets - values) / np.var(targets) if np.ptp(targets) else np.nan
    return {
        "train/value_mean": float(values.mean()),
        "train/explained_variance": float(1 - unexplained),
    }
