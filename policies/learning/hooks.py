"""Options of an update as hooks: the learner calls each at its stage, and knows none by name.

    groups ── mix_in ──▶ (some dropped) ── change_rewards ──▶ samples ── teach ──▶ loss ── penalize

What is not turned on is not imported.
"""

from collections.abc import Sequence
from typing import Any

from agentpeft.policies.learning.loss_inputs import Totals
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import EpisodeGroup, Trajectory
from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.settings.config import Settings


class LearnerHook:
    """An option that changes nothing; each option overrides the stages that it has a part in.

    `state_name`: what a checkpoint calls the hook's state; empty where it has none.
    `needs_logprobs`: `teach` compares samples with their log-probabilities before the update.
    """

    state_name = ""
    needs_logprobs = False

    def mix_in(self, groups: Sequence[EpisodeGroup]) -> list[EpisodeGroup]:
        """Returns the groups to learn from, before those of equal returns may be dropped."""
        return list(groups)

    def is_added(self, trajectory: Trajectory) -> bool:  # noqa: ARG002
        """Returns whether the last `mix_in` added this one, which was not played for the update."""
        return False

    def change_rewards(
        self,
        groups: Sequence[EpisodeGroup],
        version: int,  # noqa: ARG002
    ) -> list[EpisodeGroup]:
        """Returns the groups that are left, with the rewards to learn from."""
        return list(groups)

    def teach(self, samples: Sequence[Sample], peers: Peers) -> list[Sample]:  # noqa: ARG002
        """Returns the samples with what is added to their advantages; all learners call it."""
        return list(samples)

    def penalize(self) -> Totals:
        """Adds to the gradients, once those of all learners are summed; returns the loss."""
        return Totals()

    def end_update(self, groups: Sequence[EpisodeGroup]) -> int:  # noqa: ARG002
        """Takes note of the groups as they were played; returns how often memory ran out."""
        return 0

    def compute_metrics(self, samples: Sequence[Sample]) -> dict[str, float]:  # noqa: ARG002
        """Returns the metrics of an update."""
        return {}

    def state_dict(self) -> Any:
        """Returns what a resumed run needs, in types that torch loads as mere weights."""
        return None

    def load_state_dict(self, state: Any) -> None:
        """Continues from `state_dict`."""


def open_hooks(settings: Settings, policy: Policy, peers: Peers) -> list[LearnerHook]:
    """Returns the options that the settings turn on. Raises: SettingsError."""
    training, hooks = settings.training, list[LearnerHook]()
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
