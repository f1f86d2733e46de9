"""Groups of equal returns are dropped (`training.dynamic_sampling`); else their advantages are 0.

Source: Yu et al. 2025 (DAPO), section 3.2.
"""

from collections.abc import Sequence

from agentpeft.policies.learning.hooks import LearnerHook
from agentpeft.policies.messages import EpisodeGroup


class DynamicSampling(LearnerHook):
    """Leaves out what the estimators that compare a group's episodes cannot learn from."""

    def choose_groups(self, groups: Sequence[EpisodeGroup], version: int) -> list[EpisodeGroup]:  # noqa: ARG002
        """Returns the groups whose returns differ."""
        return [g for g in groups if len({t.episode_return for t in g.trajectories}) > 1]
