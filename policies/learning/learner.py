"""The learner: groups of episodes in, better adapter weights out.

The stages of an update, each in a module of its own:

    EpisodeGroup ── samples ──▶ Sample (with advantages) ── objective.weigh
      ── micro_batches ──▶ MicroBatch ── model_runner ── objective.compute ──▶ loss

The learner scores samples for the first stage, cuts them into minibatches, and takes one optimizer
step for each minibatch. A token's weight in the loss is settled over the whole minibatch, so how
this is cut into micro-batches changes nothing. Options take part as `hooks`.

Of several learners (`peers`) each has all groups, and makes the same samples and minibatches. It
scores and computes a share of them; gradients are summed, all take the same step, and at an
update's end all must have the same weights to the bit.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from agentpeft.envs import Outcome
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.errors import CheckpointError, TrainingError
from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.hooks import open_hooks
from agentpeft.policies.learning.objective import Objective, Totals
from agentpeft.policies.learning.passes.model_runner import POLICY_PASS, ModelRunner, Pass
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import (
    Sample,
    Scores,
    choose_extremes,
    estimate_by_episode,
    list_samples,
)
from agentpeft.policies.messages import AdapterVersion, EpisodeGroup, Floats
from agentpeft.policies.models.load import choose_device
from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.settings.config import Settings, TrainingSettings

if TYPE_CHECKING:  # most runs do without
    from agentpeft.policies.learning.critic import Critic
    from agentpeft.policies.learning.passes.sharded_base import ShardedBase

_ALONE = Peers()
_MAX_NONFINITE_STEPS = 5  # in a row: one bad batch may pass, weights that are gone stay so
_BASELINE_MOMENTUM = 0.9  # about ten updates: the mean return moves slowly against its noise


class Learner:
    """Updates a policy's trainable weights and hands them out in versions.

    `version` counts updates from 0, skipped ones too; it repeats after a return to a checkpoint.
    `baseline` is the moving average of the updates' mean returns; None before the first.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        peers: Peers = _ALONE,
        sharded_base: "ShardedBase | None" = None,
    ) -> None:
        """Trains the policy's trainable parameters in place, in step with the peers.

        `sharded_base`: that of the policy, where it is sharded already; else it is made here if
        the settings ask for it. Raises: SettingsError.
        """
        self.settings, self.policy, self.peers = settings, policy, peers
        self._sharded_base = sharded_base
        if sharded_base is None and settings.learners.shard_base:
            from agentpeft.policies.learning.passes.sharded_base import ShardedBase

            device = choose_device(settings.learners.num_gpus_per_learner)
            self._sharded_base = ShardedBase(policy, peers, device)
        self.version = 0
        self.baseline: float | None = None
        self._extremes: list[tuple[EpisodeGroup, Sample]] = []
        self._spec = algorithm_of(settings.training)
        self._objective = Objective(settings, self._spec)
        self._critic = self._open_critic()
        self._runner = ModelRunner(settings, policy, self._critic, self._sharded_base)
        self._parameters = self._runner.parameters
        # Few steps from a good start: decay would only pull an adapter back to its beginning
        self._optimizer = torch.optim.AdamW(self._parameters, weight_decay=0.0, fused=True)
        self._hooks = open_hooks(settings, policy, peers)
        self._num_updates = self._num_oom_retries = 0
        self._num_without_step = 0  # updates
        self._num_nonfinite = 0  # steps in a row
        self._warm_start: Learner | None = None
        self._is_updating = False
        self._before: tuple[list[torch.Tensor], dict[str, Any]] | None = None
        """Weights and state before the last update; None where a copy would be too large."""

    def _open_critic(self) -> "Critic | None":
        if self._spec.critic is None:
            return None
        from agentpeft.policies.learning.critic import Critic

        return Critic(self.settings, self._spec, self.policy)

    def update(self, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
        """Learns from the groups, in all epochs, and returns the metrics by their names.

        Samples from which the loss can learn nothing (`Objective.can_learn`) are not computed. A
        minibatch of such samples alone, or whose loss or gradient is not finite, makes no step. An
        update without any step is counted (`num_skipped_updates`) and is a new version all the
        same.

        Raises: TrainingError after too many non-finite steps in a row.
        """
        self._begin_update()
        chosen = list(groups)
        for hook in self._hooks:
            chosen = hook.choose_groups(chosen, self.version)
        samples = self._make_samples(chosen, self._move_baseline(groups))
        totals, norms = self._take_steps(samples)
        self._extremes = [(chosen[s.group], s) for s in choose_extremes(samples)]
        metrics = {**totals.compute_metrics(), **_compute_episode_metrics(groups)}
        metrics["train/num_dropped_groups"] = len(groups) - len(chosen)
        if self.settings.max_adapter_lag:
            metrics |= _compute_lag_metrics(groups, self.version)
        return metrics | self._end_update(samples, norms)

    def _begin_update(self) -> None:
        """Keeps what `roll_back` needs, and sets the mode: imitation uses a base's dropout."""
        self._is_updating = True
        self._before = None  # two copies are never there at once
        if self.settings.lora.use_lora and self._sharded_base is None:
            weights = [parameter.detach().clone() for parameter in self._parameters]
            self._before = weights, deepcopy(self.state_dict())
        self.policy.model.train(self._spec.is_supervised)
        for module in self.policy.model.modules():
            # Checkpointing needs this mode; what is in it stays without dropout, as the engine
            module.training |= bool(vars(module).get("gradient_checkpointing"))

    def _move_baseline(self, groups: Sequence[EpisodeGroup]) -> float:
        """Returns the baseline of earlier updates (at first this mean return), and moves it."""
        mean = float(np.mean([t.episode_return for group in groups for t in group.episodes]))
        baseline = mean if self.baseline is None else self.baseline
        self.baseline = _BASELINE_MOMENTUM * baseline + (1 - _BASELINE_MOMENTUM) * mean
        return baseline

    def _take_steps(self, samples: Sequence[Sample]) -> tuple[Totals, list[float]]:
        """Takes all optimizer steps; returns their totals, and the gradients' norms."""
        lr = compute_lr(self.settings.training, self._num_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        totals = Totals()
        norms: list[float] = []
        for epoch in range(self._spec.num_epochs):
            for minibatch in self._minibatches(samples, epoch):
                norms += self._step(minibatch, totals)
        return totals, norms

    def _end_update(self, samples: Sequence[Sample], norms: Sequence[float]) -> dict[str, float]:
        """Makes the update a version; returns the metrics of steps and options."""
        self.peers.check_equal(self._parameters)
        metrics = {} if self._critic is None else self._critic.compute_metrics(samples)
        for hook in self._hooks:
            metrics |= hook.end_update(samples)
        num_retries = sum(hook.num_oom_retries for hook in self._hooks)
        by_learner = self.peers.gather(num_retries + self._runner.size.end_update())
        # Over a sharded base all learners try again where one does
        self._num_oom_retries += max(by_learner) if self._sharded_base else sum(by_learner)
        self._num_without_step += not norms
        self._num_updates += 1
        self.version += 1
        self._is_updating = False
        return metrics | {
            "train/grad_norm": float(np.mean(norms)) if norms else 0.0,
            "train/lr": self._optimizer.param_groups[0]["lr"],
            "train/baseline": cast(float, self.baseline),
            "train/num_skipped_updates": self._num_without_step,
            "train/num_nonfinite_steps": self._num_nonfinite,
            "train/num_oom_retries": self._num_oom_retries,
        }

    def abandon(self) -> None:
        """Has an update that is under way in another thread fail soon; for `roll_back`."""
        self._runner.is_abandoned = True

    @torch.no_grad()
    def roll_back(self, version: int) -> bool:
        """Goes back to a version, whose update may have been interrupted; returns whether it could.

        It is the present one, or the one before the last update. No copy is kept of all weights,
        nor over a sharded base, so an update that has begun cannot be undone there.
        """
        self._runner.is_abandoned = False
        if self.version == version and not self._is_updating:
            return True
        if self._before is None or self._before[1]["version"] != version:
            return False
        weights, state = self._before
        for parameter, weight in zip(self._parameters, weights, strict=True):
            parameter.copy_(weight)
        self.load_state_dict(state)
        self._is_updating = False
        return True

    def sft_update(self, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
        """Takes a supervised step on oracle episodes, before RL, with an optimizer of its own."""
        if self._warm_start is None:
            training = TrainingSettings(algorithm="sft", lr=self.settings.warm_start.lr)
            settings = self.settings.model_copy(update={"training": training})
            self._warm_start = Learner(settings, self.policy, self.peers, self._sharded_base)
        metrics = self._warm_start.update(groups)
        self.version += 1
        return metrics

    def adapter(self, *, in_bfloat16: bool = False) -> AdapterVersion:
        """Returns a version: the weights as they are, or rounded to bfloat16, and their hash."""
        weights = self.policy.adapter_bits() if in_bfloat16 else self.policy.adapter_weights()
        return make_version(self.version, self.settings.experiment, weights, self.policy.scaling)

    def score_extremes(self) -> list[tuple[EpisodeGroup, Sample, Floats]]:
        """Returns the samples of extreme advantages at the last update, lowest and highest.

        Each with its group and its tokens' log-probabilities under the present weights. All
        learners must call it.
        """
        updated = self._score([sample for _, sample in self._extremes])
        return [
            (group, sample, scores.logprobs)
            for (group, sample), scores in zip(self._extremes, updated, strict=True)
            if scores.logprobs is not None
        ]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that, with the policy's weights, lets a run resume to the bit."""
        return {
            "critic": {} if self._critic is None else self._critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "version": self.version,
            "baseline": self.baseline,
            "counts": (self._num_updates, self._num_without_step, self._num_nonfinite),
            "oom": (self._num_oom_retries, *self._runner.size.state()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`; load the policy's weights separately.

        Raises: CheckpointError if it has another kind of critic.
        """
        saved = state.get("critic", {})
        trained = {} if self._critic is None else self._critic.state_dict()
        if saved.keys() != trained.keys():
            counts = f"{len(saved)} weights, this run's {len(trained)}"
            raise CheckpointError(f"the checkpoint's critic (training.critic) has {counts}")
        if self._critic is not None:
            self._critic.load_state_dict(saved)
        self._optimizer.load_state_dict(state["optimizer"])
        self.version, self.baseline = state["version"], state["baseline"]
        self._num_updates, self._num_without_step, self._num_nonfinite = state["counts"]
        self._num_oom_retries, *budget = state["oom"]
        self._runner.size.load_state(*budget)

    def _make_samples(self, groups: Sequence[EpisodeGroup], baseline: float) -> list[Sample]:
        """Returns the groups' samples, scored as far as it is needed, with advantages.

        A teacher needs the old log-probabilities of all samples, a critic their values. Without
        either, an update of several steps scores only the samples that the loss can learn from, and
        where each is learnt from once not those of the first step; a single step scores none.
        """
        if not groups:
            return []
        training, samples = self.settings.training, list_samples(groups)
        if training.kl_coeff > 0:
            with self.policy.reference():
                scores = self._score(samples)
            samples = [replace(s, reference=r) for s, r in zip(samples, scores, strict=True)]
        is_taught = any(hook.needs_logprobs for hook in self._hooks)
        is_ratio_moving = self._spec.num_epochs * training.num_minibatches > 1
        # The critic's pass always, the policy's only where its old log-probabilities are read
        passes = [p for p in self._runner.passes if p.has_values or is_taught or is_ratio_moving]
        needs_all = is_taught or self._critic is not None
        if needs_all:
            scores = self._score(samples, passes)
            samples = [replace(s, old=old) for s, old in zip(samples, scores, strict=True)]
        if self._critic is None:
            samples = estimate_by_episode(samples, self._spec, baseline)
        else:
            samples = self._critic.estimate_by_turn(samples)
        samples = [sample for sample in samples if sample.num_sampled_tokens]
        if is_ratio_moving and not needs_all:
            # What the first step learns from needs none: its own forward pass is of the old weights
            first_steps = self._minibatches(samples, 0)[:1] if self._spec.num_epochs == 1 else []
            in_first_step = {s.group for minibatch in first_steps for s in minibatch}
            is_scored = [
                s.group not in in_first_step and self._objective.can_learn(s) for s in samples
            ]
            old = iter(self._score([*compress(samples, is_scored)], passes))
            samples = [
                replace(s, old=next(old)) if scored else s
                for s, scored in zip(samples, is_scored, strict=True)
            ]
        for hook in self._hooks:
            samples = hook.teach(samples, self.peers)
        return samples

    def _score(
        self, samples: Sequence[Sample], passes: Sequence[Pass] = (POLICY_PASS,)
    ) -> list[Scores]:
        """Returns scores by the present weights, each learner scoring its share."""
        return self.peers.divide(samples, partial(self._runner.score, passes=passes))

    def _minibatches(self, samples: Sequence[Sample], epoch: int) -> list[list[Sample]]:
        """Splits the samples into minibatches of whole groups, at random but repeatably."""
        groups = sorted({sample.group for sample in samples})
        num_parts = min(self.settings.training.num_minibatches, len(groups))
        rng = np.random.default_rng((self.settings.seed, self.version, epoch))
        groups = rng.permutation(groups).tolist() if num_parts > 1 else groups
        parts = [set(groups[i::num_parts]) for i in range(num_parts)]
        return [[s for s in samples if s.group in part] for part in parts]

    def _step(self, minibatch: Sequence[Sample], totals: Totals) -> list[float]:
        """Takes one optimizer step; returns the gradient's norm, if it was taken."""
        weighted = self._objective.weigh(minibatch)
        if not weighted:
            return []
        share = self.peers.choose_share(weighted)
        # Clears the gradients; for each micro-batch a forward pass, the loss, and backward
        share_totals = self._runner.accumulate(share, self._objective)
        self.peers.sum_gradients(self._parameters)
        whole = Totals()
        for part in [*(hook.penalize() for hook in self._hooks), *self.peers.gather(share_totals)]:
            whole.add(part)
        limit = self.settings.training.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit).item()
        if np.isfinite(whole.loss) and np.isfinite(norm):
            self._optimizer.step()
            self._num_nonfinite = 0
            totals.add(whole)
            return [norm]
        self._num_nonfinite += 1
        if self._num_nonfinite > _MAX_NONFINITE_STEPS:
            raise TrainingError(
                f"{self._num_nonfinite} steps in a row had no finite gradient (loss {whole.loss}, "
                f"norm {norm}): lower training.lr"
            )
        return []


def compute_lr(training: TrainingSettings, iteration: int) -> float:
    """Returns the rate of the iteration (from 0); decaying schedules end near 0 at the last.

    Warm-up over 4: 1/4, 2/4, 3/4, 4/4 of `lr`, then the schedule over the rest.
    """
    warmup = training.num_warmup_iterations
    if iteration < warmup:
        return training.lr * (iteration + 1) / warmup
    done = min((iteration - warmup) / max(training.num_iterations - warmup, 1), 1.0)
    factors = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
    return training.lr * factors[training.lr_schedule]


def _compute_episode_metrics(groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Returns means over all episodes, those of dropped groups too, and their sampled tokens."""
    episodes = [t for group in groups for t in group.episodes]
    played = [t for group in groups for t in group.trajectories]
    return {
        "train/avg_reward": float(np.mean([t.episode_return for t in episodes])),
        "train/accuracy": float(np.mean([t.outcome is Outcome.SUCCESS for t in episodes])),
        "train/num_tokens": int(sum(t.loss_mask.sum() for t in played)),
    }


def _compute_lag_metrics(groups: Sequence[EpisodeGroup], version: int) -> dict[str, float]:
    """Returns by how many versions the adapter that sampled a token was behind: mean and most."""
    lags = [np.zeros(0)]
    for group in groups:
        for t in group.trajectories:
            versions = group.adapter_version if t.token_versions is None else t.token_versions
            lags.append((version - np.broadcast_to(versions, t.loss_mask.shape))[t.loss_mask])
    every = np.concatenate(lags)
    mean, most = (float(every.mean()), float(every.max())) if len(every) else (0.0, 0.0)
    return {"train/adapter_lag_mean": mean, "train/adapter_lag_max": most}
