"""The learner: groups of episodes in, better adapter weights out.

The stages of an update, each in a module of its own:

    EpisodeGroup ── samples ──▶ Sample (with advantages) ── objective.weigh
      ── micro_batches ──▶ MicroBatch ── model_runner ──▶ Outputs ── objective.compute ──▶ loss

The learner scores trajectories for the first stage, cuts samples into minibatches, and takes one
optimizer step for each minibatch. A token's weight in the loss is settled over the whole minibatch,
so how this is cut into micro-batches changes nothing.

Of several learners (`peers`) each has all groups, and makes the same samples and minibatches. It
scores and computes a share of them; gradients are summed, all take the same step, and at an
update's end all must have the same weights to the bit.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentpeft.envs import Outcome
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.critic import (
    POLICY_PASS,
    Critic,
    Pass,
    compute_critic_metrics,
)
from agentpeft.policies.learning.hooks import open_hooks
from agentpeft.policies.learning.loss_inputs import Totals
from agentpeft.policies.learning.objective import Objective
from agentpeft.policies.learning.passes.model_runner import ModelRunner
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import (
    GroupMember,
    Sample,
    Scores,
    list_members,
    make_samples,
)
from agentpeft.policies.learning.schedules import ScheduledAdamW
from agentpeft.policies.learning.token_records import UpdatedSample, choose_extremes
from agentpeft.policies.messages import AdapterVersion, EpisodeGroup
from agentpeft.policies.models.load import choose_device
from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.settings.config import Settings, TrainingSettings

if TYPE_CHECKING:  # a base that is not sharded does without
    from agentpeft.policies.learning.passes.sharded_base import ShardedBase

_ALONE = Peers()
_MAX_NONFINITE_STEPS = 5  # in a row: one bad batch may pass, weights that are gone stay so
_BASELINE_MOMENTUM = 0.9  # about ten updates: the mean return moves slowly against its noise


class Learner:
    """Updates a policy's trainable weights and hands them out in versions.

    `version` counts updates from 0, skipped ones too, so a version names one moment of the run.
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
        if sharded_base is None and settings.learners.shard_base:
            from agentpeft.policies.learning.passes.sharded_base import ShardedBase

            device = choose_device(settings.learners.num_gpus_per_learner)
            sharded_base = ShardedBase(policy, peers, device)
        self._sharded_base = sharded_base
        self.version = 0
        self.baseline: float | None = None
        self._extremes: list[tuple[EpisodeGroup, Sample]] = []
        self._spec = algorithm_of(settings.training)
        self._objective = Objective(settings, self._spec)
        self._critic = Critic(self._spec.critic, policy, settings.seed)
        self._runner = ModelRunner(settings, policy, self._critic, sharded_base)
        self._parameters = self._runner.parameters
        training = settings.training
        self._optimizer = ScheduledAdamW(training, policy, self._critic.parameters())
        self._hooks = open_hooks(settings, policy, peers)
        self._num_updates = self._num_oom_retries = 0
        self._num_without_step = 0  # updates
        self._num_nonfinite = 0  # steps in a row
        self._warm_start: Learner | None = None
        self._is_updating = False
        self._before: tuple[list[torch.Tensor], dict[str, Any]] | None = None
        """Weights and state before the last update; None where a copy would be too large."""

    def update(self, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
        """Learns from the groups once and returns the metrics, by their names.

        Under `dynamic_sampling` groups of equal returns are dropped; else their advantages are 0,
        and they are not computed. A minibatch whose advantages are all 0, or whose loss or gradient
        is not finite, makes no step. An update without any step is counted
        (`num_skipped_updates`); its version is a new one all the same.

        Raises: TrainingError after too many non-finite steps in a row.
        """
        self._is_updating = True
        self._before = None  # two copies are never there at once
        if self.settings.lora.use_lora and self._sharded_base is None:
            weights = [parameter.detach().clone() for parameter in self._parameters]
            self._before = weights, deepcopy(self.state_dict())
        totals = Totals()
        lr = self._optimizer.set_lr(self._num_updates)
        self._set_mode()
        kept = list(groups)
        for hook in self._hooks:
            kept = hook.mix_in(kept)
        kept = [group for group in kept if not self._is_dropped(group)]
        for hook in self._hooks:
            kept = hook.change_rewards(kept, self.version)
        mean = float(np.mean([t.episode_return for group in groups for t in group.trajectories]))
        baseline = mean if self.baseline is None else self.baseline
        samples = self._make_samples(kept, baseline) if kept else []
        self.baseline = _BASELINE_MOMENTUM * baseline + (1 - _BASELINE_MOMENTUM) * mean
        norms: list[float] = []
        for epoch in range(self._spec.num_epochs):
            for minibatch in self._minibatches(samples, epoch):
                norms += self._step(minibatch, totals)
        if not norms:
            self._num_without_step += 1
        self._num_updates += 1
        self.version += 1
        fresh = [s for s in samples if not self._is_added(s)]
        self._extremes = [(kept[s.member.group], s) for s in choose_extremes(fresh)]
        self.peers.check_equal(self._parameters)
        num_retries = self._runner.size.end_update()
        num_retries += sum(hook.end_update(groups) for hook in self._hooks)
        by_learner = self.peers.gather(num_retries)
        # Over a sharded base all learners try again where one does
        self._num_oom_retries += max(by_learner) if self._sharded_base else sum(by_learner)
        self._is_updating = False
        return {
            **totals.metrics(),
            **_compute_episode_metrics(groups),
            **(_compute_lag(groups, self.version - 1) if self.settings.max_adapter_lag else {}),
            **compute_critic_metrics(samples),
            **{
                name: value
                for hook in self._hooks
                for name, value in hook.compute_metrics(samples).items()
            },
            "train/grad_norm": float(np.mean(norms)) if norms else 0.0,
            "train/lr": lr,
            "train/baseline": self.baseline,
            "train/num_dropped_groups": len(groups) - len(kept),
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

        It is the present one, or the one before the last update. Of all weights, or over a sharded
        base, there is no copy: there it cannot undo an update that has begun.
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

    def score_extremes(self) -> list[tuple[EpisodeGroup, UpdatedSample]]:
        """Returns the samples that pulled hardest at the last update, with their groups.

        All learners must call it.
        """
        members = [sample.member for _, sample in self._extremes]
        updated = self._score(members, [POLICY_PASS])
        return [
            (group, UpdatedSample(sample, scores.logprobs))
            for (group, sample), scores in zip(self._extremes, updated, strict=True)
            if scores.logprobs is not None
        ]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that, with the policy's weights, lets a run resume to the bit."""
        return {
            "critic": self._critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "version": self.version,
            "baseline": self.baseline,
            "counts": (self._num_updates, self._num_without_step, self._num_nonfinite),
            **{hook.state_name: hook.state_dict() for hook in self._hooks if hook.state_name},
            "oom": (self._num_oom_retries, *self._runner.size.state()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`; load the policy's weights separately."""
        self._critic.load_state_dict(state.get("critic", {}))
        self._optimizer.load_state_dict(state["optimizer"])
        self.version, self.baseline = state["version"], state["baseline"]
        self._num_updates, self._num_without_step, self._num_nonfinite = state["counts"]
        for hook in self._hooks:
            if hook.state_name in state:
                hook.load_state_dict(state[hook.state_name])
        self._num_oom_retries, *budget = state["oom"]
        self._runner.size.load_state(*budget)

    def _is_added(self, sample: Sample) -> bool:
        return any(hook.is_added(sample.member.trajectory) for hook in self._hooks)

    def _is_dropped(self, group: EpisodeGroup) -> bool:
        returns = [t.episode_return for t in group.trajectories]
        return self.settings.training.dynamic_sampling and min(returns) == max(returns)

    def _make_samples(self, groups: Sequence[EpisodeGroup], baseline: float) -> list[Sample]:
        """Returns the groups' samples, once the model has scored them as far as it is needed."""
        training, members = self.settings.training, list_members(groups)
        make = partial(make_samples, members, spec=self._spec, training=training, baseline=baseline)
        nothing = [Scores()] * len(members)
        reference = nothing
        if training.kl_coeff > 0:
            with self.policy.reference():
                reference = self._score(members, [POLICY_PASS])
        old = self._score_before(members, lambda: make(nothing, reference))
        samples = make(old, reference)
        for hook in self._hooks:
            samples = hook.teach(samples, self.peers)
        return samples

    def _score_before(
        self, members: Sequence[GroupMember], make_drafts: Callable[[], list[Sample]]
    ) -> list[Scores]:
        """Returns each member's scores by the weights before the update, empty if not needed.

        A teacher needs the log-probabilities of all members, a critic their values. Only the ratio
        of an update that takes several steps does with less: with the samples that the loss can
        learn from, as `make_drafts` tells without scores.
        """
        training = self.settings.training
        for_advantages = any(hook.needs_logprobs for hook in self._hooks)
        for_ratio = self._spec.num_epochs * training.num_minibatches > 1
        passes = [p for p in self._critic.passes if p.has_values or for_advantages or for_ratio]
        if not passes or for_advantages or any(each.has_values for each in passes):
            return self._score(members, passes)
        learnt = {draft.member.place for draft in make_drafts() if self._objective.can_learn(draft)}
        scored = iter(self._score([m for m in members if m.place in learnt], passes))
        return [next(scored) if member.place in learnt else Scores() for member in members]

    def _score(self, members: Sequence[GroupMember], passes: Sequence[Pass]) -> list[Scores]:
        """Returns each member's scores by the present weights, each learner scoring its share."""
        if not passes:
            return [Scores()] * len(members)
        return self.peers.divide(members, partial(self._runner.score, passes=passes))

    def _minibatches(self, samples: Sequence[Sample], epoch: int) -> list[list[Sample]]:
        """Splits the samples into minibatches of whole groups, at random but repeatably."""
        groups = sorted({sample.member.group for sample in samples})
        num_parts = min(self.settings.training.num_minibatches, len(groups))
        rng = np.random.default_rng((self.settings.seed, self.version, epoch))
        groups = rng.permutation(groups).tolist() if num_parts > 1 else groups
        parts = [set(groups[i::num_parts]) for i in range(num_parts)]
        return [[s for s in samples if s.member.group in part] for part in parts]

    def _step(self, minibatch: Sequence[Sample], totals: Totals) -> list[float]:
        """Takes one optimizer step; returns the gradient's norm, if it was taken."""
        weighted = self._objective.weigh(minibatch)
        if not weighted:
            return []
        numbers = self.peers.shares([each.member for each in weighted])[self.peers.rank]
        share = [weighted[number] for number in numbers]
        share_totals = self._runner.accumulate(share, self._objective)
        self.peers.sum_gradients(self._parameters)
        whole = Totals()
        for part in [*(hook.penalize() for hook in self._hooks), *self.peers.gather(share_totals)]:
            whole.add(part)
        limit = self.settings.training.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit).item()
        if not (np.isfinite(whole.loss) and np.isfinite(norm)):
            self._skip(whole.loss, norm)
            return []
        self._optimizer.step()
        self._num_nonfinite = 0
        totals.add(whole)
        return [norm]

    def _skip(self, loss: float, norm: float) -> None:
        self._num_nonfinite += 1
        if self._num_nonfinite > _MAX_NONFINITE_STEPS:
            raise TrainingError(
                f"{self._num_nonfinite} steps in a row had no finite gradient (loss {loss}, "
                f"norm {norm}): lower training.lr"
            )

    def _set_mode(self) -> None:
        """Sets training mode for imitation, for a base's dropout, and for checkpointing."""
        checkpointing = self.settings.learners.gradient_checkpointing
        self.policy.model.train(self._spec.is_supervised or checkpointing)


def _compute_lag(groups: Sequence[EpisodeGroup], version: int) -> dict[str, float]:
    """Returns by how many versions the adapters that sampled tokens are behind: mean and most."""
    lags = [np.zeros(0)]
    for group in groups:
        for t in group.trajectories:
            versions = group.adapter_version if t.token_versions is None else t.token_versions
            lags.append((version - np.broadcast_to(versions, t.loss_mask.shape))[t.loss_mask])
    every = np.concatenate(lags)
    mean, most = (float(every.mean()), float(every.max())) if len(every) else (0.0, 0.0)
    return {"train/adapter_lag_mean": mean, "train/adapter_lag_max": most}


def _compute_episode_metrics(groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Returns means over all episodes, those of dropped groups too, and their sampled tokens."""
    episodes = [t for group in groups for t in group.trajectories]
    return {
        "train/avg_reward": float(np.mean([t.episode_return for t in episodes])),
        "train/accuracy": float(np.mean([t.outcome is Outcome.SUCCESS for t in episodes])),
        "train/num_tokens": int(sum(t.loss_mask.sum() for t in episodes)),
    }
