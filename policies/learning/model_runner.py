"""The model at work on micro-batches that fit into memory: scores, and a loss's gradients."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.batches import MicroBatch, make_micro_batches
from agentpeft.policies.learning.critic import Critic, Pass
from agentpeft.policies.learning.forward import (
    Outputs,
    PolicyOutputs,
    can_share_prompts,
    compute_entropy,
    compute_logits,
)
from agentpeft.policies.learning.objective import (
    Objective,
    Totals,
    WeightedSample,
    make_loss_inputs,
)
from agentpeft.policies.learning.samples import GroupMember, Scores
from agentpeft.policies.learning.scoring import token_logprobs
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.load import uses_autocast
from agentpeft.policies.models.lora import Policy
from agentpeft.policies.settings.config import Settings

_MIN_MICRO_BATCH_TOKENS = 32
CALM_UPDATES = 20
"""After so many updates in a row without a shortage of memory, micro-batches double again."""
_OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator for CPUs, on Linux
    "not enough memory",  # the same, elsewhere
    "bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_T = TypeVar("_T")


class ModelRunner:
    """Runs a policy's model, and its critic, forwards and backwards.

    It halves `max_tokens`, the size of a micro-batch, whenever memory runs out. A shortage may
    pass: after `CALM_UPDATES` updates without one it doubles `max_tokens`, up to the setting.
    """

    def __init__(self, settings: Settings, policy: Policy, critic: Critic) -> None:
        """`parameters` are all that is trained: the policy's, then the critic's."""
        self.parameters = [*policy.trainable_parameters(), *critic.parameters()]
        self._limit = self.max_tokens = settings.learners.max_tokens_per_micro_batch
        self._num_oom_retries = self._num_calm_updates = 0
        self._model, self._critic = policy.model, critic
        self._head = policy.base.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._device = self.parameters[0].device
        spec = algorithm_of(settings.training)
        # The policy that sampled; imitation and greedy play are scored at temperature 1
        self._temperature = (not spec.is_supervised and settings.env_runners.temperature) or 1.0
        self._has_entropy_bonus = spec.entropy_coeff > 0
        may_share = settings.learners.share_prompts and not settings.learners.gradient_checkpointing
        self._shares_prompts = may_share and can_share_prompts(policy.base.model.config)
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
            with each.adapter():
                self._within_memory(partial(self._score, members, each, logprobs, values))
        return [Scores(logprobs[number], values[number]) for number in numbers]

    def accumulate(self, samples: Sequence[WeightedSample], objective: Objective) -> Totals:
        """Leaves the gradients of the samples' loss in `parameters`; returns its totals."""
        return self._within_memory(lambda: self._accumulate(samples, objective))

    def end_update(self) -> int:
        """Returns how often memory ran out in this update; grows micro-batches after calm ones."""
        taken, self._num_oom_retries = self._num_oom_retries, 0
        is_calm = taken == 0 and self.max_tokens < self._limit
        self._num_calm_updates = self._num_calm_updates + 1 if is_calm else 0
        if self._num_calm_updates == CALM_UPDATES:
            self._num_calm_updates = 0
            self.max_tokens = min(2 * self.max_tokens, self._limit)
        return taken

    def state(self) -> tuple[int, int]:
        """Returns the present `max_tokens`, and the number of updates since memory last ran out."""
        return self.max_tokens, self._num_calm_updates

    def load_state(self, max_tokens: int, num_calm_updates: int = 0) -> None:
        """Continues from `state`, within this run's setting."""
        self.max_tokens = min(max_tokens, self._limit)
        self._num_calm_updates = num_calm_updates

    @torch.no_grad()
    def _score(
        self,
        members: Sequence[GroupMember],
        forward_pass: Pass,
        logprobs: dict[int, Floats | None],
        values: dict[int, Floats | None],
    ) -> None:
        """Fills in what the pass computes, by member's number."""
        for batch in self._micro_batches(members):
            logits, states = self._forward(batch, forward_pass)
            if forward_pass.has_logits:
                logprobs |= batch.by_member(token_logprobs(logits, batch.slots, batch.targets))
            if forward_pass.has_values:
                values |= batch.by_member(self._critic.values(states, batch))

    def _accumulate(self, samples: Sequence[WeightedSample], objective: Objective) -> Totals:
        for parameter in self.parameters:
            parameter.grad = None
        totals = Totals()
        members = [each.sample.member for each in samples]
        for forward_pass in self._critic.passes:
            with forward_pass.adapter():
                for batch in self._micro_batches(members):
                    packed = [samples[number] for number in batch.order]
                    outputs = self._outputs(batch, forward_pass)
                    inputs = make_loss_inputs(packed, self._device)
                    loss, part = objective.compute(outputs, inputs)
                    loss.backward()  # type: ignore[no-untyped-call]
                    totals.add(part)
        return totals

    def _outputs(self, batch: MicroBatch, forward_pass: Pass) -> Outputs:
        logits, states = self._forward(batch, forward_pass)
        policy = values = None
        if forward_pass.has_logits:
            logprobs = token_logprobs(logits, batch.slots, batch.targets)
            with torch.set_grad_enabled(self._has_entropy_bonus):
                policy = PolicyOutputs(logprobs, compute_entropy(logits, batch))
        if forward_pass.has_values:
            values = self._critic.values(states, batch)
        return Outputs(policy, values)

    def _forward(self, batch: MicroBatch, forward_pass: Pass) -> tuple[Tensor, Tensor]:
        """Returns the needed positions' logits, over the temperature, and their states."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            logits, states = compute_logits(self._model, self._head, batch, forward_pass.has_logits)
        return logits if self._temperature == 1.0 else logits / self._temperature, states

    def _micro_batches(self, members: Sequence[GroupMember]) -> list[MicroBatch]:
        return make_micro_batches(members, self.max_tokens, self._shares_prompts, self._device)

    def _within_memory(self, compute: Callable[[], _T]) -> _T:
        """Returns the result; tries again with smaller micro-batches while memory runs out."""
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error) or self.max_tokens < 2 * _MIN_MICRO_BATCH_TOKENS:
                    raise
            self.max_tokens //= 2
            self._num_oom_retries += 1


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    is_by_type = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return is_by_type or any(text in str(error) for text in _OUT_OF_MEMORY)
