"""The learner: groups of episodes in, better adapter weights out.

An update turns groups into advantages, cuts them into minibatches, these into micro-batches, and
takes one optimizer step for each minibatch. How it is cut into micro-batches changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies import losses
from agentpeft.policies.adapter_store import make_version
from agentpeft.policies.advantages import GroupRewards, turns_to_tokens
from agentpeft.policies.algorithms import algorithm_of
from agentpeft.policies.batches import (
    MicroBatch,
    Sample,
    can_share_prompts,
    compute_logits,
    compute_logprobs,
    make_micro_batches,
)
from agentpeft.policies.config import Settings, TrainingSettings
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.lora import Policy
from agentpeft.policies.objective import Objective, Totals, compute_episode_metrics
from agentpeft.policies.samples import AdapterVersion, EpisodeGroup, Floats
from agentpeft.policies.schedules import compute_lr
from agentpeft.policies.token_records import choose_extremes

_MIN_MICRO_BATCH_TOKENS = 32
_MIN_PARAMETERS_FOR_CPU_AUTOCAST = 50_000_000
_T = TypeVar("_T")


class Learner:
    """Updates a LoRA policy's trainable weights and hands them out in versions.

    `version` counts updates from 0, skipped ones too: a version names one moment of the run.
    `baseline` is the moving average of the batches' mean returns; None before the first.
    """

    def __init__(self, settings: Settings, policy: Policy) -> None:
        """Trains the policy's trainable parameters, in place."""
        self.settings, self.policy = settings, policy
        self.version = 0
        self.baseline: float | None = None
        self._extremes: list[tuple[EpisodeGroup, Sample]] = []
        self._spec = algorithm_of(settings.training)
        self._objective = Objective(settings, self._spec)
        self._head = policy.base.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._parameters = policy.trainable_parameters()
        self._device = self._parameters[0].device
        decay = settings.training.weight_decay
        self._optimizer = torch.optim.AdamW(self._parameters, weight_decay=decay, fused=True)
        self._max_tokens = settings.learners.max_tokens_per_micro_batch
        self._num_updates = self._num_oom_retries = 0
        self._num_skipped = self._num_skipped_in_a_row = 0
        may_share = settings.learners.share_prompts and not settings.learners.gradient_checkpointing
        self._shares_prompts = may_share and can_share_prompts(policy.base.model.config)
        self._autocast = uses_autocast(settings, policy, self._device)
        self._warm_start: Learner | None = None

    def update(self, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
        """Learns from the groups once and returns the metrics, by their names.

        Groups of equal returns are dropped under `dynamic_sampling`; with none left, or where a
        loss or gradient is not finite, nothing is learnt, which is counted.

        Raises: TrainingError after too many non-finite steps in a row.
        """
        totals = Totals()
        lr = compute_lr(self.settings.training, self._num_updates)
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = lr
        self._set_mode()
        kept = [group for group in groups if not self._is_dropped(group)]
        samples = self._make_samples(groups, kept) if kept else []
        norms: list[float] = []
        for epoch in range(self._spec.num_epochs):
            for minibatch in self._minibatches(samples, epoch):
                norms += self._step(minibatch, totals)
        self._num_skipped += not norms
        self._num_updates += 1
        self.version += 1
        self._extremes = [(kept[s.group], s) for s in choose_extremes(samples)]
        return {
            **totals.metrics(),
            **compute_episode_metrics(groups),
            "train/grad_norm": float(np.mean(norms)) if norms else 0.0,
            "train/lr": lr,
            "train/baseline": self.baseline or 0.0,
            "train/num_dropped_groups": len(groups) - len(kept),
            "train/num_skipped_updates": self._num_skipped,
            "train/num_oom_retries": self._num_oom_retries,
        }

    def sft_update(self, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
        """Takes a supervised step on oracle episodes, before RL, with an optimizer of its own."""
        if self._warm_start is None:
            training = TrainingSettings(algorithm="sft", lr=self.settings.warm_start.lr)
            settings = self.settings.model_copy(update={"training": training})
            self._warm_start = Learner(settings, self.policy)
        metrics = self._warm_start.update(groups)
        self.version += 1
        return metrics

    def adapter(self) -> AdapterVersion:
        """Returns the weights as they are now, as version `version`."""
        weights, scaling = self.policy.adapter_weights(), self.policy.scaling
        return make_version(self.version, self.settings.experiment, weights, scaling)

    def score_extremes(self) -> list[tuple[EpisodeGroup, Sample]]:
        """Returns what pulled hardest at the last update, with the column `updated_logprobs`."""
        groups, samples = [g for g, _ in self._extremes], [s for _, s in self._extremes]
        return list(zip(groups, self._with_logprobs(samples, "updated_logprobs"), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Returns all that, with the policy's weights, makes a resumed run equal to the bit."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "version": self.version,
            "baseline": self.baseline,
            "counts": (self._num_updates, self._num_skipped, self._num_skipped_in_a_row),
            "oom": (self._num_oom_retries, self._max_tokens),
            "torch_rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state_dict` was taken; the weights are loaded into the policy apart."""
        self._optimizer.load_state_dict(state["optimizer"])
        self.version, self.baseline = state["version"], state["baseline"]
        self._num_updates, self._num_skipped, self._num_skipped_in_a_row = state["counts"]
        self._num_oom_retries, self._max_tokens = state["oom"]
        torch.set_rng_state(state["torch_rng"])
        if len(state["cuda_rng"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda_rng"])

    def _is_dropped(self, group: EpisodeGroup) -> bool:
        returns = [t.episode_return for t in group.trajectories]
        return self.settings.training.dynamic_sampling and min(returns) == max(returns)

    @property
    def _reuses_samples(self) -> bool:
        return self._spec.num_epochs * self.settings.training.num_minibatches > 1

    def _make_samples(
        self, groups: Sequence[EpisodeGroup], kept: Sequence[EpisodeGroup]
    ) -> list[Sample]:
        """Returns a sample of each trajectory with sampled tokens, with its advantages."""
        training = self.settings.training
        samples = [
            Sample(i, t, {"sampling_logprobs": t.sampling_logprobs[t.loss_mask]})
            for i, group in enumerate(kept)
            for t in group.trajectories
        ]
        if self._reuses_samples or (training.kl_placement == "reward" and training.kl_coeff > 0):
            samples = self._with_logprobs(samples, "old_logprobs")
        if training.kl_coeff > 0:
            with self.policy.reference():
                samples = self._with_logprobs(samples, "reference_logprobs")
        rewards = self._rewards(kept, samples)
        mean = float(np.mean([t.episode_return for g in groups for t in g.trajectories]))
        self.baseline = mean if self.baseline is None else self.baseline
        advantages = [a for group in self._spec.advantage(rewards, self.baseline) for a in group]
        momentum = training.baseline_momentum
        self.baseline = momentum * self.baseline + (1 - momentum) * mean
        return [
            replace(s, columns={**s.columns, "advantages": turns_to_tokens(a, s.trajectory)})
            for s, a in zip(samples, advantages, strict=True)
            if s.trajectory.loss_mask.any()
        ]

    def _rewards(
        self, groups: Sequence[EpisodeGroup], samples: Sequence[Sample]
    ) -> list[GroupRewards]:
        """Returns the turns' rewards, less the turns' KL where that is placed there."""
        training = self.settings.training
        rewards = [np.array(s.trajectory.turn_rewards, np.float32) for s in samples]
        if training.kl_coeff > 0 and training.kl_placement == "reward":
            kls = [_turn_kl(s, training) for s in samples]
            rewards = [r - training.kl_coeff * kl for r, kl in zip(rewards, kls, strict=True)]
        numbered = iter(rewards)
        return [[next(numbered) for _ in group.trajectories] for group in groups]

    def _with_logprobs(self, samples: Sequence[Sample], name: str) -> list[Sample]:
        """Returns the samples with the present weights' log-probabilities as a column."""
        found = self._within_memory(lambda: self._score(samples))
        empty = np.zeros(0, np.float32)
        return [replace(s, columns={**s.columns, name: found.get(id(s), empty)}) for s in samples]

    @torch.no_grad()
    def _score(self, samples: Sequence[Sample]) -> dict[int, Floats]:
        found: dict[int, Floats] = {}
        for batch in self._micro_batches(samples):
            values = compute_logprobs(self._logits(batch), batch).cpu().numpy()
            ends = np.cumsum([s.trajectory.loss_mask.sum() for s in batch.samples])
            parts = np.split(values, ends[:-1])
            found |= {id(s): v for s, v in zip(batch.samples, parts, strict=True)}
        return found

    def _minibatches(self, samples: Sequence[Sample], epoch: int) -> list[list[Sample]]:
        """Returns the samples of whole groups in random, repeatable parts."""
        groups = sorted({sample.group for sample in samples})
        num_parts = min(self.settings.training.num_minibatches, len(groups))
        rng = np.random.default_rng((self.settings.seed, self.version, epoch))
        groups = rng.permutation(groups).tolist() if num_parts > 1 else groups
        parts = [set(groups[i::num_parts]) for i in range(num_parts)]
        return [[s for s in samples if s.group in part] for part in parts]

    def _step(self, minibatch: Sequence[Sample], totals: Totals) -> list[float]:
        """Takes one optimizer step; returns the gradient's norm, if it was taken."""
        samples = self._objective.weigh(minibatch)
        if not samples:
            return []
        own = self._within_memory(lambda: self._accumulate(samples))
        limit = self.settings.training.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit).item()
        if not (np.isfinite(own.loss) and np.isfinite(norm)):
            self._skip(own.loss, norm)
            return []
        self._optimizer.step()
        self._num_skipped_in_a_row = 0
        totals.add(own)
        return [norm]

    def _skip(self, loss: float, norm: float) -> None:
        self._num_skipped_in_a_row += 1
        limit = self.settings.fault_tolerance.max_skipped_updates
        if self._num_skipped_in_a_row > limit:
            raise TrainingError(
                f"{self._num_skipped_in_a_row} steps in a row had no finite gradient (loss {loss}, "
                f"norm {norm}; fault_tolerance.max_skipped_updates is {limit}): lower training.lr"
            )

    def _accumulate(self, samples: Sequence[Sample]) -> Totals:
        """Adds up the gradients of all micro-batches."""
        self._optimizer.zero_grad()
        totals = Totals()
        for batch in self._micro_batches(samples):
            loss, own = self._objective.compute(self._logits(batch), batch)
            loss.backward()  # type: ignore[no-untyped-call]
            totals.add(own)
        return totals

    def _within_memory(self, compute: Callable[[], _T]) -> _T:
        """Returns the result, with ever smaller micro-batches while memory does not suffice."""
        while True:
            try:
                return compute()
            except RuntimeError as error:
                if not _is_out_of_memory(error) or self._max_tokens < 2 * _MIN_MICRO_BATCH_TOKENS:
                    raise
            self._max_tokens //= 2
            self._num_oom_retries += 1

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        return make_micro_batches(samples, self._max_tokens, self._shares_prompts, self._device)

    def _logits(self, batch: MicroBatch) -> Tensor:
        """Returns logits of the sampling temperature; imitation and greedy play are at 1."""
        temperature = 1.0 if self._spec.is_supervised else self.settings.env_runners.temperature
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            logits = compute_logits(self.policy.model, self._head, batch)
        return logits if temperature in {0.0, 1.0} else logits / temperature

    def _set_mode(self) -> None:
        """Dropout is for imitation alone; checkpointing works in training mode only."""
        checkpointing = self.settings.learners.gradient_checkpointing
        self.policy.model.train(self._spec.is_supervised or checkpointing)


def _turn_kl(sample: Sample, training: TrainingSettings) -> Floats:
    """Returns the KL of each turn, summed over its tokens, as the update found it: (turns,)."""
    old, reference = (sample.columns[name] for name in ("old_logprobs", "reference_logprobs"))
    kl = losses.compute_kl(torch.tensor(old), torch.tensor(reference), training.kl_estimator)
    sampled = np.flatnonzero(sample.trajectory.loss_mask)
    turns = np.searchsorted(np.array(sample.trajectory.turn_ends), sampled, side="right")
    num_turns = len(sample.trajectory.turn_ends)
    return np.bincount(turns, kl.numpy(), minlength=num_turns).astype(np.float32)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)


def uses_autocast(settings: Settings, policy: Policy, device: torch.device) -> bool:
    """Returns whether to compute in bfloat16: for a small model on a CPU casting is overhead."""
    if settings.learners.autocast != "auto":
        return settings.learners.autocast == "bfloat16"
    num_parameters = sum(p.numel() for p in policy.model.parameters())
    return device.type != "cpu" or num_parameters >= _MIN_PARAMETERS_FOR_CPU_AUTOCAST
