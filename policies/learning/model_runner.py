"""Samples through the model, in micro-batches that memory suffices for: scores and gradients."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.batches import (
    MicroBatch,
    Sample,
    can_share_prompts,
    compute_logprobs,
    compute_outputs,
    make_micro_batches,
)
from agentpeft.policies.learning.critic import Critic, Pass
from agentpeft.policies.learning.objective import Objective, Totals
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.load import uses_autocast
from agentpeft.policies.models.lora import Policy
from agentpeft.policies.settings.config import Settings

_MIN_MICRO_BATCH_TOKENS = 32
CALM_UPDATES = 20
"""After so many updates in a row for which memory sufficed, micro-batches are doubled again."""
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

    `max_tokens` of a micro-batch is halved whenever memory does not suffice, which may pass: after
    `CALM_UPDATES` without, it is doubled, up to the setting.
    """

    def __init__(self, settings: Settings, policy: Policy, critic: Critic) -> None:
        """Trains what policy and critic have: `parameters`."""
        self.parameters = [*policy.trainable_parameters(), *critic.parameters()]
        self._limit = self.max_tokens = settings.learners.max_tokens_per_micro_batch
        self._num_oom_retries = self._num_calm_updates = 0
        self._model, self._critic = policy.model, critic
        self._head = policy.base.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._device = self.parameters[0].device
        is_supervised = algorithm_of(settings.training).is_supervised
        self._temperature = (not is_supervised and settings.env_runners.temperature) or 1.0
        may_share = settings.learners.share_prompts and not settings.learners.gradient_checkpointing
        self._shares_prompts = may_share and can_share_prompts(policy.base.model.config)
        self._autocast = uses_autocast(settings, policy.model, self._device)

    def score(self, samples: Sequence[Sample], way: Pass) -> list[dict[str, Floats]]:
        """Returns what a pass gives for each sample's tokens, (N,) each: `logprobs`, `values`."""
        with way.adapter():
            return self._within_memory(lambda: self._score(samples, way))

    def accumulate(self, samples: Sequence[Sample], objective: Objective) -> Totals:
        """Leaves the objective's gradients in `parameters`, and returns its totals."""
        return self._within_memory(lambda: self._accumulate(samples, objective))

    def end_update(self) -> int:
        """Returns how often memory did not suffice in this update, and grows after calm ones."""
        taken, self._num_oom_retries = self._num_oom_retries, 0
        is_calm = taken == 0 and self.max_tokens < self._limit
        self._num_calm_updates = self._num_calm_updates + 1 if is_calm else 0
        if self._num_calm_updates == CALM_UPDATES:
            self._num_calm_updates = 0
            self.max_tokens = min(2 * self.max_tokens, self._limit)
        return taken

    def state(self) -> tuple[int, int]:
        """Returns the present `max_tokens`, and for how many updates memory has sufficed."""
        return self.max_tokens, self._num_calm_updates

    def load_state(self, max_tokens: int, num_calm_updates: int = 0) -> None:
        """Goes on from `state`, within this run's setting."""
        self.max_tokens = min(max_tokens, self._limit)
        self._num_calm_updates = num_calm_updates

    @torch.no_grad()
    def _score(self, samples: Sequence[Sample], way: Pass) -> list[dict[str, Floats]]:
        none = np.zeros(0, np.float32)
        found = {id(s): dict.fromkeys(way.columns, none) for s in samples}
        for batch in self._micro_batches(samples):
            ends = np.cumsum([s.trajectory.loss_mask.sum() for s in batch.samples])
            for name, values in self._read(batch, way).items():
                parts = np.split(values.cpu().numpy(), ends[:-1])
                for sample, part in zip(batch.samples, parts, strict=True):
                    found[id(sample)][name] = part
        return [found[id(sample)] for sample in samples]

    def _read(self, batch: MicroBatch, way: Pass) -> dict[str, Tensor]:
        logits, states = self._outputs(batch, way)
        columns = {"logprobs": compute_logprobs(logits, batch)} if way.has_logits else {}
        return columns | ({"values": self._critic.values(states, batch)} if way.has_values else {})

    def _accumulate(self, samples: Sequence[Sample], objective: Objective) -> Totals:
        for parameter in self.parameters:
            parameter.grad = None
        totals = Totals()
        for way in self._critic.passes:
            with way.adapter():
                for batch in self._micro_batches(samples):
                    totals.add(self._backward(batch, way, objective))
        return totals

    def _backward(self, batch: MicroBatch, way: Pass, objective: Objective) -> Totals:
        logits, states = self._outputs(batch, way)
        parts = [objective.compute(logits, batch)] if way.has_logits else []
        if way.has_values:
            values = self._critic.values(states, batch)
            parts.append(objective.compute_value_loss(values, batch))
        torch.stack([loss for loss, _ in parts]).sum().backward()  # type: ignore[no-untyped-call]
        totals = Totals()
        for _, own in parts:
            totals.add(own)
        return totals

    def _outputs(self, batch: MicroBatch, way: Pass) -> tuple[Tensor, Tensor]:
        """Returns logits of the sampling temperature (imitation, greedy play: 1), and states."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            logits, states = compute_outputs(self._model, self._head, batch, way.has_logits)
        return logits if self._temperature == 1.0 else logits / self._temperature, states

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        return make_micro_batches(samples, self.max_tokens, self._shares_prompts, self._device)

    def _within_memory(self, compute: Callable[[], _T]) -> _T:
        """Returns the result, with ever smaller micro-batches while memory does not suffice."""
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
