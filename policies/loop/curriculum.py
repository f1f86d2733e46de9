"""`Curriculum`: which tasks training takes next; the one place that decides.

A task is a function of the seed, its stage and its position in that stage's stream. Most runs have
one stage, and take its positions one after another; what else settings ask for (stages, a frontier)
is in `task_choice`. It decides by the results of rounds that have ended,
in the order in which their groups were chosen, and by nothing else: not by who played. Without a
lag a round is what was chosen for it; with `max_adapter_lag` it is the groups that the learner has
learnt from, which follows from when they were finished.

    choose groups ──▶ env runners play them ──▶ the learner learns from them ──▶ end_round
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:  # only where the settings choose among tasks
    from agentpeft.policies.loop.task_choice import TaskChoice


def has_spread(episodes: Iterable[EpisodeRecord]) -> bool:
    """Returns whether a group's episodes earned different returns, so that it can teach.

    As the learner does, it leaves out episodes in which nothing was sampled.
    """
    returns = {episode.episode_return for episode in episodes if episode.num_turns}
    return len(returns) > 1


def group_records(records: Iterable[EpisodeRecord]) -> dict[int, list[EpisodeRecord]]:
    """Returns the episodes of each group, by its id."""
    groups: dict[int, list[EpisodeRecord]] = {}
    for record in records:
        groups.setdefault(record.group_id, []).append(record)
    return groups


def count_spread(records: Iterable[EpisodeRecord]) -> int:
    """Returns how many groups had spread."""
    return sum(has_spread(episodes) for episodes in group_records(records).values())


class Curriculum:
    """Chooses the groups of each round, an iteration's, and learns from rounds that have ended.

    `position` is the first one of the task streams that was not looked at yet; the streams of all
    stages share it, so that a position names one group of the run.
    """

    _choice: "TaskChoice | None"

    def __init__(self, settings: Settings) -> None:
        """Begins at the first stage and position 0.

        Raises: SettingsError, also where the tasks have nothing that a frontier could be known by.
        """
        self.position = 0
        self._training = settings.training
        self._chosen: list[GroupRequest] = []  # and not ended, in the order of choosing
        self._num_given = 0  # of these; the others were under way in a run that is resumed
        self._num_resampled = self._num_refilled = 0  # in the present round
        self._choice = None
        if settings.curriculum.stages or settings.curriculum.sampling == "frontier":
            from agentpeft.policies.loop.task_choice import TaskChoice

            self._choice = TaskChoice(settings)

    def next_positions(self, num_groups: int) -> range:
        """Returns the next positions, whatever their tasks are."""
        first = self.position
        self.position += num_groups
        return range(first, self.position)

    def next_groups(self, num_groups: int) -> Sequence[GroupRequest]:
        """Returns the next groups, those that a resumed run had chosen first."""
        num_new = max(num_groups - (len(self._chosen) - self._num_given), 0)
        if self._choice is None:
            self._chosen += [self._make_request(p, 0) for p in self.next_positions(num_new)]
        else:
            positions = self._choice.choose(self.next_positions, num_new)
            self._chosen += [self._make_request(p, self._choice.stage) for p in positions]
        first, self._num_given = self._num_given, self._num_given + num_groups
        return self._chosen[first : self._num_given]

    def resample(self, num_missing: int) -> Sequence[GroupRequest]:
        """Returns groups for a round in place of those without spread, as far as is allowed."""
        num_left = self._training.max_resampled_groups - self._num_resampled
        num_groups = max(0, min(num_missing, num_left))
        self._num_resampled += num_groups
        return self.next_groups(num_groups)

    def refill(self) -> Sequence[GroupRequest]:
        """Returns a group in place of one that was given up; `num_groups` at most in a round."""
        num_groups = int(self._num_refilled < self._training.num_groups)
        self._num_refilled += num_groups
        return self.next_groups(num_groups)

    def end_round(
        self, requests: Iterable[GroupRequest], records: Sequence[EpisodeRecord]
    ) -> dict[str, float]:
        """Learns from the groups of a round, and returns its metrics.

        `records` are of those that were played to their end.
        """
        episodes, ended = group_records(records), set(requests)
        metrics = {
            "sample/spread_share": sum(map(has_spread, episodes.values())) / max(len(episodes), 1),
            "sample/num_resampled_groups": float(self._num_resampled),
            "sample/num_refilled_groups": float(self._num_refilled),
        }
        if self._choice is not None:
            for request in filter(ended.__contains__, self._chosen):
                self._choice.record_group(request.stage, episodes.get(request.group_id, []))
            metrics |= self._choice.metrics()
        self._chosen = [request for request in self._chosen if request not in ended]
        self._num_given -= len(ended)
        self._num_resampled = self._num_refilled = 0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the position, JSON-able."""
        chosen = [(request.group_id, request.stage) for request in self._chosen]
        choice: dict[str, Any] = {"difficulty": None, "rates": {}}
        if self._choice is not None:
            choice = self._choice.state_dict()
        return {"rounds": [chosen] if chosen else [], **choice}

    def check_fits(self, state: Mapping[str, Any] | None) -> None:
        """Raises: CheckpointError where a checkpoint's stages are not this curriculum's."""
        if state is None:
            return
        stages = [stage for chosen in state["rounds"] for _, stage in chosen]
        stages += [state["difficulty"]["level"]] if state["difficulty"] else []
        has_stages = self._choice is not None and self._choice.has_stages
        num_stages = 1 if self._choice is None else self._choice.num_stages
        if bool(state["difficulty"]) != has_stages or max(stages, default=0) >= num_stages:
            raise CheckpointError("the checkpoint has other curriculum.stages than this run")

    def load_state_dict(self, position: int, state: Mapping[str, Any] | None) -> None:
        """Resumes from a checkpoint; one of before there were curricula has a position alone."""
        self.position, self._num_given, self._chosen = position, 0, []
        if state is None:
            return
        self._chosen = [self._make_request(*pair) for chosen in state["rounds"] for pair in chosen]
        if self._choice is not None:
            self._choice.load_state_dict(state)

    def close(self) -> None:
        """Closes the environments that told of tasks; idempotent."""
        if self._choice is not None:
            self._choice.close()

    def _make_request(self, position: int, stage: int) -> GroupRequest:
        return GroupRequest(position, self._training.group_size, "train", stage)
