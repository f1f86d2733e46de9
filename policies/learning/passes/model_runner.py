"""The forward and backward passes: micro-batches through the model, for scores or gradients.

Only models that change their logits have them made, (U, V); others: `linear_logprobs`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentpeft.policies.errors import TrainingError
from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.critic import Critic, Pass
from agentpeft.policies.learning.loss_inputs import Totals, make_loss_inputs
from agentpeft.policies.learning.objective import Objective, Outputs
from agentpeft.policies.learning.passes.micro_batches import (
    Layout,
    MicroBatch,
    MicroBatchSize,
    compute_logits,
    make_micro_batches,
)
from agentpeft.policies.learning.passes.packed_attention import can_pack, packed_attention
from agentpeft.policies.learning.samples import GroupMember, Sample, Scores
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.linear_logprobs import gives_logits, linear_logprobs
from agentpeft.policies.models.load import uses_autocast
from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.models.policy_base import FrozenPolicy
from agentpeft.policies.models.scoring import token_entropy, token_logprobs
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:  # a base that is not sharded does without
    from agentpeft.policies.learning.passes.sharded_base import ShardedBase


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
        policy: Policy | FrozenPolicy,
        critic: Critic,
        sharded_base: "ShardedBase | None" = None,
    ) -> None:
        """`parameters` are all that is trained: the policy's, then the critic's.

        `sharded_base`: where the policy's is; then all learners call the same methods.
        """
        self._sharded_base = sharded_base
        self.is_abandoned = False
        self.parameters = [*policy.trainable_parameters(), *critic.parameters()]
        self.size = MicroBatchSize(settings.learners.max_tokens_per_micro_batch)
        self._model, self._critic = policy.model, critic
        self._head = policy.base.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._device = next(policy.model.parameters()).device
        self._needs_logits = not gives_logits(self._head, policy.model)
        spec = algorithm_of(settings.training)
        # Of the policy that sampled. Imitation, and greedy play (0), are scored at temperature 1
        sampled_at = settings.env_runners.temperature
        self._temperature = 1.0 if spec.is_supervised or sampled_at == 0 else sampled_at
        self._has_entropy_bonus = spec.entropy_coeff > 0
        self._layout: Layout = "padded"
        self._attention: Callable[[], AbstractContextManager[None]] = nullcontext
        if can_pack(policy.base.model, policy.model):
            self._layout = "shared" if settings.learners.share_prompts else "packed"
            self._attention = partial(packed_attention, policy.base.model)
        self._autocast = uses_autocast(settings, policy.model, self._device)

    def score(self, members: Sequence[GroupMember], passes: Sequence[Pass]) -> list[Scores]:
        """Returns what the passes say of each member's sampled tokens, without gradients."""
        numbers, no_tokens = range(len(members)), np.zeros(0, np.float32)
        logprobs: dict[int, Floats | None] = dict.fromkeys(numbers)
        values: dict[int, Floats | None] = dict.fromkeys(numbers)
        for each in passes:
            if each.has_logits:
                logprobs |= dict.fromkeys(numbers, no_tokens)
            if each.has_values:
                values |= dict.fromkeys(numbers, no_tokens)
            self.size.within_memory(partial(self._score, members, each, logprobs, values))
        return [Scores(logprobs[number], values[number]) for number in numbers]

    def accumulate(self, samples: Sequence[Sample], objective: Objective) -> Totals:
        """Leaves the gradients of the samples' loss in `parameters`; returns its totals."""
        return self.size.within_memory(lambda: self._accumulate(samples, objective))

    @torch.no_grad()
    def _score(
        self,
        members: Sequence[GroupMember],
        forward_pass: Pass,
        logprobs: dict[int, Floats | None],
        values: dict[int, Floats | None],
    ) -> None:
        """Fills in what the pass computes, by member's number."""

        def run(batch: MicroBatch) -> None:
            outputs = self._outputs(batch, forward_pass)
            if outputs.logprobs is not None:
                logprobs.update(batch.by_member(outputs.logprobs))
            if outputs.values is not None:
                values.update(batch.by_member(outputs.values))

        self._run_all(members, forward_pass, run)

    def _accumulate(self, samples: Sequence[Sample], objective: Objective) -> Totals:
        for parameter in self.parameters:
            parameter.grad = None
        totals = Totals()
        members = [sample.member for sample in samples]

        def run(forward_pass: Pass, batch: MicroBatch) -> None:
            packed = [samples[number] for number in batch.order]
            outputs = self._outputs(batch, forward_pass)
            inputs = make_loss_inputs(packed, self._device)
            loss, part = objective.compute(outputs, inputs)
            loss.backward()  # type: ignore[no-untyped-call]
            totals.add(part)

        for forward_pass in self._critic.passes:
            self._run_all(members, forward_pass, partial(run, forward_pass))
        return totals

    def _run_all(
        self,
        members: Sequence[GroupMember],
        forward_pass: Pass,
        run: Callable[[MicroBatch], None],
    ) -> None:
        """Runs the members' micro-batches; over a sharded base in step with the other learners."""
        with forward_pass.adapter(), self._attention():
            batches = self._micro_batches(members)
            if self._sharded_base is None:
                for batch in batches:
                    if self.is_abandoned:
                        raise TrainingError("the update was given up")
                    run(batch)
                return
            kind = forward_pass, torch.is_grad_enabled()
            self._sharded_base.run(kind, batches, run, partial(self._rehearse, forward_pass))

    def _rehearse(self, forward_pass: Pass) -> None:
        """Runs all that a micro-batch runs, over one token; the gradients that it adds are 0."""
        from agentpeft.policies.learning.passes.sharded_base import REHEARSED

        (batch,) = self._micro_batches([REHEARSED])
        outputs = self._outputs(batch, forward_pass)
        if torch.is_grad_enabled():
            computed = [o for o in (outputs.logprobs, outputs.values) if o is not None]
            loss = torch.cat(computed).sum() * 0.0
            loss.backward()  # type: ignore[no-untyped-call]

    def _outputs(self, batch: MicroBatch, forward_pass: Pass) -> Outputs:
        needs_logits = forward_pass.has_logits and self._needs_logits
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            logits, states = compute_logits(self._model, self._head, batch, needs_logits)
        slots, targets, bonus = batch.slots, batch.targets, self._has_entropy_bonus
        logprobs = entropy = None
        if needs_logits:
            logits = logits if self._temperature == 1.0 else logits / self._temperature
            logprobs = token_logprobs(logits, slots, targets)
            with torch.set_grad_enabled(torch.is_grad_enabled() and bonus):
                entropy = token_entropy(logits, slots)
        elif forward_pass.has_logits:
            logprobs, entropy = linear_logprobs(
                states, self._head, slots, targets, self._temperature, has_entropy_gradient=bonus
            )
        values = self._critic.values(states, batch) if forward_pass.has_values else None
        return Outputs(logprobs, entropy, values)

    def _micro_batches(self, members: Sequence[GroupMember]) -> list[MicroBatch]:
        return make_micro_batches(members, self.size.max_tokens, self._layout, self._device)
