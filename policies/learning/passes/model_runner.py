"""The forward and backward passes: micro-batches through the model, for scores or gradients.

Only models that change their logits have them made, (U, V); others: `linear_logprobs`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.errors import TrainingError
from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.objective import Objective, Totals
from agentpeft.policies.learning.passes.micro_batches import (
    MicroBatch,
    MicroBatchSize,
    compute_logits,
    make_micro_batches,
)
from agentpeft.policies.learning.passes.packed_attention import can_pack, packed_attention
from agentpeft.policies.learning.samples import Sample, Scores
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.linear_logprobs import gives_logits, linear_logprobs
from agentpeft.policies.models.load import uses_autocast
from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.models.scoring import token_entropy, token_logprobs
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:  # most runs do without
    from agentpeft.policies.learning.critic import Critic
    from agentpeft.policies.learning.options.teacher import FrozenPolicy
    from agentpeft.policies.learning.passes.sharded_base import ShardedBase


@dataclass(frozen=True)
class Pass:
    """A forward pass: what it computes, and the context that switches its adapter on.

    Run the backward pass in that context too: gradient checkpointing recomputes the states there.
    """

    has_logits: bool
    has_values: bool
    adapter: Callable[[], AbstractContextManager[None]] = nullcontext


POLICY_PASS = Pass(has_logits=True, has_values=False)


class ModelRunner:
    """Runs a policy's model, and its critic, forwards and backwards.

    Where memory runs out a pass begins again, from no gradients, with micro-batches of half the
    tokens (`size`; below 64 tokens the error is raised), over a sharded base together with all
    other learners. They grow again after calm updates.

    `is_abandoned`, which another thread may set, ends a pass before its next micro-batch.
    """

    def __init__(
        self,
        settings: Settings,
        policy: "Policy | FrozenPolicy",
        critic: "Critic | None" = None,
        sharded_base: "ShardedBase | None" = None,
    ) -> None:
        """`parameters` are all that is trained: the policy's, then the critic's.

        `sharded_base`: where the policy's is; then all learners call the same methods.
        """
        self._sharded_base = sharded_base
        self.is_abandoned = False
        self.parameters = [*policy.trainable_parameters(), *(critic.parameters() if critic else ())]
        self.passes = [POLICY_PASS] if critic is None else critic.passes
        self.size = MicroBatchSize(settings.learners.max_tokens_per_micro_batch)
        self._base, self._model, self._critic = policy.base.model, policy.model, critic
        self._head = policy.base.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._device = next(policy.model.parameters()).device
        self._needs_logits = not gives_logits(self._head, policy.model)
        spec = algorithm_of(settings.training)
        # Of the policy that sampled. Imitation, and greedy play (0), are scored at temperature 1
        sampled_at = settings.env_runners.temperature
        self._temperature = 1.0 if spec.is_supervised or sampled_at == 0 else sampled_at
        self._has_entropy_bonus = spec.entropy_coeff > 0
        self._is_packed = can_pack(policy.base.model, policy.model)
        self._autocast = uses_autocast(settings, policy.model, self._device)

    def score(
        self, samples: Sequence[Sample], passes: Sequence[Pass] = (POLICY_PASS,)
    ) -> list[Scores]:
        """Returns what the passes say of each sample's sampled tokens, without gradients."""
        numbers, no_tokens = range(len(samples)), np.zeros(0, np.float32)
        logprobs: dict[int, Floats] = {}
        values: dict[int, Floats] = {}

        def note(forward_pass: Pass, batch: MicroBatch) -> None:
            batch_logprobs, _, batch_values = self.compute(batch, forward_pass)
            if batch_logprobs is not None:
                logprobs.update(batch.by_sample(batch_logprobs))
            if batch_values is not None:
                values.update(batch.by_sample(batch_values))

        for each in passes:
            if each.has_logits:
                logprobs |= dict.fromkeys(numbers, no_tokens)
            if each.has_values:
                values |= dict.fromkeys(numbers, no_tokens)
            with torch.no_grad():
                self.size.within_memory(partial(self._run_all, samples, each, note))
        return [Scores(logprobs.get(number), values.get(number)) for number in numbers]

    def accumulate(self, samples: Sequence[Sample], objective: Objective) -> Totals:
        """Leaves the gradients of the samples' loss in `parameters`; returns its totals."""
        return self.size.within_memory(partial(self._accumulate, samples, objective))

    def _accumulate(self, samples: Sequence[Sample], objective: Objective) -> Totals:
        for parameter in self.parameters:
            parameter.grad = None
        totals = Totals()

        def learn(forward_pass: Pass, batch: MicroBatch) -> None:
            packed = [samples[number] for number in batch.order]
            logprobs, entropy, values = self.compute(batch, forward_pass)
            results = []
            if logprobs is not None and entropy is not None:
                results.append(objective.compute(logprobs, entropy, packed))
            if values is not None and self._critic is not None:
                results.append(self._critic.compute_loss(values, packed))
            torch.stack([loss for loss, _ in results]).sum().backward()  # type: ignore[no-untyped-call]
            for _, part in results:
                totals.add(part)

        for forward_pass in self.passes:
            self._run_all(samples, forward_pass, learn)
        return totals

    def _run_all(
        self,
        samples: Sequence[Sample],
        forward_pass: Pass,
        run: Callable[[Pass, MicroBatch], None],
    ) -> None:
        """Runs the samples' micro-batches; over a sharded base in step with the other learners."""
        run_batch = partial(run, forward_pass)
        attention = packed_attention(self._base) if self._is_packed else nullcontext()
        with forward_pass.adapter(), attention:
            batches = self.make_micro_batches(samples)
            if self._sharded_base is None:
                for batch in batches:
                    if self.is_abandoned:
                        raise TrainingError("the update was given up")
                    run_batch(batch)
                return
            self._sharded_base.run(self, forward_pass, batches, run_batch)

    def compute(
        self, batch: MicroBatch, forward_pass: Pass
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Returns the policy's log-probabilities and entropies (in nats), and the critic's values.

        (N,) each, of the micro-batch's sampled tokens; None: not computed.
        """
        needs_logits = forward_pass.has_logits and self._needs_logits
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            logits, states = compute_logits(self._model, self._head, batch, needs_logits)
        slots, targets, bonus = batch.slots, batch.targets, self._has_entropy_bonus
        logprobs = entropy = values = None
        if needs_logits:
            logits = logits if self._temperature == 1.0 else logits / self._temperature
            logprobs = token_logprobs(logits, slots, targets)
            with torch.set_grad_enabled(torch.is_grad_enabled() and bonus):
                entropy = token_entropy(logits, slots)
        elif forward_pass.has_logits:
            logprobs, entropy = linear_logprobs(
                states, self._head, slots, targets, self._temperature, has_entropy_gradient=bonus
            )
        if forward_pass.has_values and self._critic is not None:
            values = self._critic.compute_values(states, batch)
        return logprobs, entropy, values

    def make_micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        """Returns the samples in micro-batches of the present size."""
        return make_micro_batches(
            samples, self.size.max_tokens, is_packed=self._is_packed, device=self._device
        )
