"""The critic: predicts, where each turn begins, the return that is still to come.

A turn's value is read off the last token before its first sampled one. That token predicts the
sampled one, so its state is at hand. Values are computed for every sampled token, as
log-probabilities are; only that of each turn's first token counts (`CriticTargets.turn_starts`).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.learning.passes.micro_batches import MicroBatch
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.models.lora.attach_lora import LoraPolicy, Policy
from agentpeft.policies.models.policy_base import FrozenPolicy
from agentpeft.policies.settings.training import CriticKind


@dataclass(frozen=True)
class Pass:
    """A forward pass: what it computes, and the context that switches its adapter on.

    Run the backward pass in that context too: gradient checkpointing recomputes the states there.
    """

    has_logits: bool
    has_values: bool
    adapter: Callable[[], AbstractContextManager[None]] = nullcontext


_ADAPTER = "critic"
POLICY_PASS = Pass(has_logits=True, has_values=False)


class Critic:
    """A linear head, zero at first, on the states that the model's output layer reads.

    "shared": the head reads the policy's own pass, and the value loss trains the policy's adapter
    too. "separate": it reads a second pass, with the critic's own adapter on the same frozen base.
    None: there are no values and nothing to train.
    """

    def __init__(self, kind: CriticKind | None, policy: Policy | FrozenPolicy, seed: int) -> None:
        """Adds an adapter to the policy's model, if it is separate."""
        self.passes: list[Pass] = [POLICY_PASS]
        self._weights: dict[str, nn.Parameter] = {}
        output = cast(nn.Linear, policy.base.model.get_output_embeddings())  # type: ignore[no-untyped-call]
        width, device = output.weight.shape[1], output.weight.device
        self._head = nn.utils.skip_init(nn.Linear, width, 1, device=device)  # type: ignore[no-untyped-call]
        for name, weight in self._head.named_parameters():
            nn.init.zeros_(weight)
            self._weights |= {f"value_head.{name}": weight} if kind else {}
        if kind == "shared":
            self.passes = [Pass(has_logits=True, has_values=True)]
        elif kind == "separate":
            policy = cast(LoraPolicy, policy)  # with all weights the settings refuse it
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self._weights |= policy.add_adapter(_ADAPTER)
            own = Pass(has_logits=False, has_values=True, adapter=partial(policy.running, _ADAPTER))
            self.passes = [POLICY_PASS, own]

    def parameters(self) -> list[nn.Parameter]:
        """Returns what is trained, always in the same order."""
        return list(self._weights.values())

    def values(self, states: Tensor, batch: MicroBatch) -> Tensor:
        """Returns the values (N,), float32, from the states (U, H) of the needed positions."""
        values: Tensor = self._head(states.float())[batch.slots, 0]
        return values

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the weights, by name."""
        return {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads weights. Raises: CheckpointError if they are of another kind of critic."""
        if state.keys() != self._weights.keys():
            counts = f"{len(state)} weights, this run's {len(self._weights)}"
            raise CheckpointError(f"the checkpoint's critic (training.critic) has {counts}")
        for name, weight in self._weights.items():
            weight.copy_(state[name])


def compute_critic_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns the turns' mean value before the update, and how well values explained the targets.

    The explained variance is 1 - var(target - value) / var(target): 1 at best, 0 for a constant,
    NaN if all targets are equal. Returns nothing if there is no critic.
    """
    critic = [sample.critic for sample in samples if sample.critic is not None]
    if not critic:
        return {}
    values = np.concatenate([each.old_values[each.turn_starts > 0] for each in critic])
    targets = np.concatenate([each.targets[each.turn_starts > 0] for each in critic])
    unexplained = np.var(targets - values) / np.var(targets) if np.ptp(targets) else np.nan
    return {
        "train/value_mean": float(values.mean()),
        "train/explained_variance": float(1 - unexplained),
    }
