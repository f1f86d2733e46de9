"""Options of an update as hooks: the learner calls each at its stage, and knows none by name.

    groups ── choose_groups ──▶ samples ── teach ──▶ loss ── penalize ──▶ step; end_update

What is not turned on is not imported.
"""

from collections.abc import Sequence

from agentpeft.policies.learning.objective import Totals
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import EpisodeGroup
from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.settings.config import Settings


class LearnerHook:
    """An option that changes nothing; each option overrides the stages that it has a part in.

    `needs_logprobs`: `teach` compares samples with their log-probabilities before the update.
    `num_oom_retries`: how often memory ran out in the hook's part of the last update.
    """

    needs_logprobs = False
    num_oom_retries = 0

    def choose_groups(self, groups: Sequence[EpisodeGroup], version: int) -> list[EpisodeGroup]:  # noqa: ARG002
        """Returns the groups to learn from at a version, with the rewards to learn from."""
        return list(groups)

    def teach(self, samples: Sequence[Sample], peers: Peers) -> list[Sample]:  # noqa: ARG002
        """Returns the samples with what is added to their advantages; all learners call it."""
        return list(samples)

    def penalize(self) -> Totals:
        """Adds to the gradients, once those of all learners are summed; returns the loss."""
        return Totals()

    def end_update(self, samples: Sequence[Sample]) -> dict[str, float]:  # noqa: ARG002
        """Returns the option's metrics of an update's samples."""
        return {}


class DynamicSampling(LearnerHook):
    """Drops groups of equal returns, of which estimators that compare a group's episodes make 0.

    Source: Yu et al. 2025 (DAPO), section 3.2.
    """

    def choose_groups(self, groups: Sequence[EpisodeGroup], version: int) -> list[EpisodeGroup]:  # noqa: ARG002
        """Returns the groups whose returns differ."""
        return [g for g in groups if len({t.episode_return for t in g.trajectories}) > 1]


def open_hooks(settings: Settings, policy: Policy, peers: Peers) -> list[LearnerHook]:
    """Returns the options that the settings turn on. Raises: SettingsError."""
    training, hooks = settings.training, list[LearnerHook]()
    if training.dynamic_sampling:
        hooks.append(DynamicSampling())
    if training.shuffle_rewards:
        from agentpeft.policies.learning.options.control import ShuffledRewards

        hooks.append(ShuffledRewards(settings.seed))
    if training.teacher is not None:
        from agentpeft.policies.learning.options.teacher import Distillation

        hooks.append(Distillation(settings, policy.base, peers))
    if settings.lora.orthogonal_to:
        from agentpeft.policies.learning.options.orthogonality import Orthogonality

        hooks.append(Orthogonality(policy, settings.lora))
    return hooks
