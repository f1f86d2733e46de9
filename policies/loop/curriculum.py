"""`Curriculum`: which tasks training takes next, and at which stage; the one place that decides.

A task is a function of the seed, its stage and its position in that stage's stream. What the
curriculum decides is the stage, and which positions are taken. It decides by the results of rounds
that have ended, in the order in which their groups were chosen, and by nothing else: not by who
played. Without a lag a round is what was chosen for it; with `max_adapter_lag` it is the groups
that the learner has learnt from, which follows from when they were finished.

    choose groups ──▶ env runners play them ──▶ the learner learns from them ──▶ end_round
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from agentpeft.envs import Outcome, SettingsError
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.rollout.environments.env_pool import EnvPool
from agentpeft.policies.rollout.environments.stages import open_stages
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:
    from agentpeft.envs.tasks.difficulty import AdaptiveDifficulty

_CHOICE_STREAM = 3
"""Seeds the choice among candidates: other numbers than those of tasks and samples (0 to 2)."""
_CANDIDATES_PER_GROUP = 4
_LEAST_WEIGHT = 0.05
"""What a task without any chance of spread weighs, where one that is sure of it weighs 1.05: what
is solved, or out of reach, is tried now and then, as the policy changes.
"""
_DECAY = 0.9
"""A group's part in its skill's rate after each later group of that skill."""


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


def check_frontier(settings: Settings, stages: Sequence[EnvPool]) -> None:
    """Raises: SettingsError where the stages have nothing that a frontier could be known by."""
    if settings.curriculum.sampling != "frontier":
        return
    if any(not (stage.has_finite_tasks or stage.task_at(0).skills) for stage in stages):
        raise SettingsError(
            "curriculum.sampling 'frontier' prefers skills and tasks that come again, and the "
            f"tasks of {settings.environment.id!r} have no skills and no end: take 'uniform'"
        )


class SpreadRates:
    """How often groups had spread lately: by skill, by combination of skills, and by task.

    A rate is (s + m) / (n + 1): n counts the groups, s those with spread, both decayed, and m is
    what was expected without them. That is 1 for a skill, so that new ones are tried, the mean of
    its skills for a combination, and the rate of its combination for a task.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def estimate(self, skills: Sequence[str], task: str | None) -> float:
        """Returns the chance of spread for a task with these skills.

        `task` names the task if it may come again, else None.
        """
        expected = 1.0
        for keys in _keys(skills, task):
            expected = fmean(self._rate(key, expected) for key in keys)
        return expected

    def record(self, skills: Sequence[str], task: str | None, is_spread: bool) -> None:
        """Adds a group of a task."""
        for key in chain.from_iterable(_keys(skills, task)):
            num_spread, num_groups = self._sums.get(key, (0.0, 0.0))
            self._sums[key] = [_DECAY * num_spread + is_spread, _DECAY * num_groups + 1]

    def state_dict(self) -> dict[str, list[float]]:
        """Returns the decayed counts, JSON-able."""
        return dict(self._sums)

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        """Goes on from `state_dict`."""
        self._sums = dict(state)

    def _rate(self, key: str, expected: float) -> float:
        num_spread, num_groups = self._sums.get(key, (0.0, 0.0))
        return (num_spread + expected) / (num_groups + 1)


def _keys(skills: Sequence[str], task: str | None) -> list[list[str]]:
    """Returns the names of the rates that tell of a task, the most general first."""
    keys = [[f"skill {skill}" for skill in skills]] if skills else []
    keys += [[f"skills {'+'.join(skills)}"]] if len(skills) > 1 else []
    return keys + ([[f"task {task}"]] if task is not None else [])


class Curriculum:
    """Chooses the groups of each round, and learns from rounds that have ended.

    A round is an iteration's. `position` is the first position of the task streams that was not
    looked at yet; the streams of all stages share it, so that a position names one group of the
    run.
    """

    def __init__(self, settings: Settings) -> None:
        """Begins at the first stage and position 0.

        Raises: SettingsError, also where the tasks have nothing that a frontier could be known by.
        """
        self.position = 0
        self._settings, self._own = settings, settings.curriculum
        self._chosen: list[GroupRequest] = []  # and not ended, in the order of choosing
        self._num_given = 0  # of these; the others were under way in a run that is resumed
        self._num_resampled = self._num_refilled = 0  # in the present round
        self._rates = SpreadRates()
        self._pools: list[EnvPool] = []
        if self._is_frontier or settings.environment.is_adaptive:
            self._pools = open_stages(settings)
        try:
            check_frontier(settings, self._pools)
            self._difficulty = self._make_difficulty()
        except SettingsError:
            self.close()
            raise

    def next_positions(self, num_groups: int) -> range:
        """Returns the next positions, whatever their tasks are."""
        first = self.position
        self.position += num_groups
        return range(first, self.position)

    def next_groups(self, num_groups: int) -> Sequence[GroupRequest]:
        """Returns the next groups, those that a resumed run had chosen first."""
        num_new = num_groups - (len(self._chosen) - self._num_given)
        self._chosen += self._choose(max(num_new, 0))
        first, self._num_given = self._num_given, self._num_given + num_groups
        return self._chosen[first : self._num_given]

    def resample(self, num_missing: int) -> Sequence[GroupRequest]:
        """Returns further groups for a round, to stand in for groups without spread.

        There are `num_missing` of them, and over the round no more than `max_resampled_groups`.
        """
        num_left = self._settings.training.max_resampled_groups - self._num_resampled
        num_groups = max(0, min(num_missing, num_left))
        self._num_resampled += num_groups
        return self.next_groups(num_groups)

    def refill(self) -> Sequence[GroupRequest]:
        """Returns a group in place of one that was given up; `num_groups` at most in a round."""
        num_groups = int(self._num_refilled < self._settings.training.num_groups)
        self._num_refilled += num_groups
        return self.next_groups(num_groups)

    def end_round(
        self, requests: Iterable[GroupRequest], records: Sequence[EpisodeRecord]
    ) -> dict[str, float]:
        """Takes in what the groups of a round came to, and returns metrics of it.

        `records` are of those that were played to their end.
        """
        episodes, ended = group_records(records), set(requests)
        metrics = {
            "sample/spread_share": sum(map(has_spread, episodes.values())) / max(len(episodes), 1),
            "sample/num_resampled_groups": float(self._num_resampled),
            "sample/num_refilled_groups": float(self._num_refilled),
        }
        for request in filter(ended.__contains__, self._chosen):
            self._take_in(request.stage, episodes.get(request.group_id, []))
        self._chosen = [request for request in self._chosen if request not in ended]
        self._num_given -= len(ended)
        self._num_resampled = self._num_refilled = 0
        if self._difficulty is not None:
            metrics["curriculum/stage"] = float(self._difficulty.level)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the position, JSON-able."""
        chosen = [(request.group_id, request.stage) for request in self._chosen]
        rounds = [chosen] if chosen else []
        difficulty = self._difficulty.state_dict() if self._difficulty else None
        return {"rounds": rounds, "difficulty": difficulty, "rates": self._rates.state_dict()}

    def check_fits(self, state: Mapping[str, Any] | None) -> None:
        """Raises: CheckpointError where a checkpoint's stages are not this curriculum's."""
        if state is None:
            return
        stages = [stage for own in state["rounds"] for _, stage in own]
        stages += [state["difficulty"]["level"]] if state["difficulty"] else []
        num_stages = max(len(self._own.stages), len(self._pools), 1)
        if (
            bool(state["difficulty"]) != bool(self._difficulty)
            or max(stages, default=0) >= num_stages
        ):
            raise CheckpointError("the checkpoint has other curriculum.stages than this run")

    def load_state_dict(self, position: int, state: Mapping[str, Any] | None) -> None:
        """Goes on from a checkpoint; one of before there were curricula has a position alone."""
        self.position, self._num_given, self._chosen = position, 0, []
        if state is None:
            return
        self._chosen += [self._request(*each) for own in state["rounds"] for each in own]
        self._rates.load_state_dict(state["rates"])
        if self._difficulty is not None:
            self._difficulty.load_state_dict(state["difficulty"])

    def close(self) -> None:
        """Closes the environments that told of tasks; idempotent."""
        for pool in self._pools:
            pool.close()

    @property
    def _is_frontier(self) -> bool:
        return self._own.sampling == "frontier"

    @property
    def _stage(self) -> int:
        return self._difficulty.level if self._difficulty else 0

    def _make_difficulty(self) -> "AdaptiveDifficulty | None":
        own, environment = self._own, self._settings.environment
        if not (own.stages or environment.is_adaptive):
            return None
        from agentpeft.envs.tasks.difficulty import AdaptiveDifficulty

        if own.stages:
            last = len(own.stages) - 1
            return AdaptiveDifficulty((0, last), own.window, own.promote_at, None)
        rule = environment.kwargs["adaptive"]  # the environment has checked it
        own_numbers = {} if rule is True else rule
        return AdaptiveDifficulty((0, len(self._pools) - 1), **own_numbers)

    def _request(self, position: int, stage: int) -> GroupRequest:
        return GroupRequest(position, self._settings.training.group_size, "train", stage)

    def _choose(self, num_groups: int) -> list[GroupRequest]:
        """Returns groups of the present stage, in the order of their positions."""
        if not self._is_frontier:
            positions: Sequence[int] = self.next_positions(num_groups)
        else:
            positions = self._prefer(num_groups)
        return [self._request(position, self._stage) for position in positions]

    def _prefer(self, num_groups: int) -> list[int]:
        """Returns some of the next positions, at random by the weights of their tasks.

        Candidate i with the weight w_i gets the number log(1 - u_i) / w_i, u_i uniform in [0, 1),
        and those with the largest numbers are taken: a weighted draw without replacement.
        Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir".
        """
        positions = self.next_positions(num_groups * _CANDIDATES_PER_GROUP)
        stage, pool = self._stage, self._pools[self._stage]
        tasks = [pool.task_at(position) for position in positions]
        chances = [self._rates.estimate(t.skills, self._name(stage, t.task_id)) for t in tasks]
        rng = np.random.default_rng([self._settings.seed, _CHOICE_STREAM, positions.start])
        numbers = np.log1p(-rng.random(len(positions))) / (np.array(chances) + _LEAST_WEIGHT)
        best = np.argsort(-numbers, kind="stable")[:num_groups]
        return sorted(positions[int(index)] for index in best)

    def _take_in(self, stage: int, episodes: Sequence[EpisodeRecord]) -> None:
        """Learns from a group; of one that was left out there are no episodes."""
        if episodes and self._is_frontier:
            first = episodes[0]
            name = self._name(stage, first.task_id)
            self._rates.record(first.skills, name, has_spread(episodes))
        for episode in episodes:
            if self._difficulty is not None and stage == self._difficulty.level:
                self._difficulty.record(episode.outcome is Outcome.SUCCESS)

    def _name(self, stage: int, task_id: str) -> str | None:
        """Returns a task's name in the rates; None where it will not come again."""
        return f"{stage} {task_id}" if self._pools[stage].has_finite_tasks else None
