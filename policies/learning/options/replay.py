"""Replay: a task's last success joins a group of that task in which every episode failed.

Such a group has no spread, so it teaches nothing by itself. With a success among its members the
estimators that compare a group's episodes have something to compare. The success was sampled by an
older policy: its tokens are weighed by the truncated ratio of the learner's probability to the one
with which they were sampled (`training.importance_cap`), as those of a lagging adapter are.

It helps where tasks come again, as those of a file do; a generator seldom draws one twice.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from agentpeft.envs import Outcome
from agentpeft.policies.learning.hooks import LearnerHook
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import EpisodeGroup, Trajectory

_Key: TypeAlias = tuple[str, bytes]
_ARRAYS = ("prompt_ids", "token_ids", "loss_mask", "sampling_logprobs")


class Replay(LearnerHook):
    """The last success of each of the `num_tasks` tasks that succeeded last; 0 holds nothing.

    A task is known by its id and its prompt.
    """

    state_name = "replay"

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._successes: dict[_Key, Trajectory] = {}
        self._num_replayed = 0

    def choose_groups(self, groups: Sequence[EpisodeGroup], version: int) -> list[EpisodeGroup]:  # noqa: ARG002
        """Returns the groups; to each without a success a past one is added, if there is one."""
        self._num_replayed = 0
        return [self._with_success(group) for group in groups]

    def end_update(
        self,
        groups: Sequence[EpisodeGroup],
        samples: Sequence[Sample],  # noqa: ARG002
    ) -> dict[str, float]:
        """Remembers the groups' successes, the oldest tasks go; returns how many were added."""
        for group in groups:
            for trajectory in group.trajectories:
                if trajectory.outcome is Outcome.SUCCESS and trajectory.loss_mask.any():
                    key = _key(group, trajectory)
                    self._successes.pop(key, None)
                    # Of its own, or the success would keep its whole group in Ray's store
                    arrays = {name: getattr(trajectory, name).copy() for name in _ARRAYS}
                    self._successes[key] = replace(trajectory, **arrays, token_versions=None)
        self._forget()
        return {"train/num_replayed": float(self._num_replayed)}

    def state_dict(self) -> list[dict[str, Any]]:
        """Returns what is remembered, oldest first, in types that torch loads as mere weights."""
        return [
            {
                **asdict(success),
                **{name: torch.from_numpy(getattr(success, name)) for name in _ARRAYS},
                "outcome": success.outcome.value,
                "task_id": task_id,
            }
            for (task_id, _), success in self._successes.items()
        ]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Continues from `state_dict`, within this run's number of tasks."""
        self._successes = {}
        for saved in state:
            fields = {name: value for name, value in saved.items() if name != "task_id"}
            fields |= {name: fields[name].numpy() for name in _ARRAYS}
            success = Trajectory(**{**fields, "outcome": Outcome(fields["outcome"])})
            self._successes[saved["task_id"], success.prompt_ids.tobytes()] = success
        self._forget()

    def _with_success(self, group: EpisodeGroup) -> EpisodeGroup:
        outcomes = [trajectory.outcome for trajectory in group.trajectories]
        if Outcome.SUCCESS in outcomes:
            return group
        success = self._successes.get(_key(group, group.trajectories[0]))
        if success is None:
            return group
        self._num_replayed += 1
        return replace(group, trajectories=(*group.trajectories, success))

    def _forget(self) -> None:
        for key in list(self._successes)[: max(0, len(self._successes) - self._num_tasks)]:
            del self._successes[key]


def _key(group: EpisodeGroup, trajectory: Trajectory) -> _Key:
    return group.task_id, np.ascontiguousarray(trajectory.prompt_ids).tobytes()
