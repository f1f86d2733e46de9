"""What tasks are chosen by where settings say so: a stage that follows success, and a frontier.

Success moves the run from one of `curriculum.stages` to the next. With `curriculum.sampling`
"frontier" the tasks are preferred whose groups had spread lately, by skill and by task.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np

from agentpeft.envs import Outcome, SettingsError
from agentpeft.envs.tasks.difficulty import AdaptiveDifficulty
from agentpeft.policies.loop.curriculum import has_spread
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.rollout.environments import EnvPool, open_stages
from agentpeft.policies.settings.config import Settings

_CHOICE_STREAM = 3
"""Seeds the choice among candidates: other numbers than those of tasks and samples (0 to 2)."""
_CANDIDATES_PER_GROUP = 4
_LEAST_WEIGHT = 0.05
"""What a task without any chance of spread weighs, where one that is sure of it weighs 1.05: what
is solved, or out of reach, is tried now and then, as the policy changes.
"""
_DECAY = 0.9
"""A group's part in its skill's rate after each later group of that skill."""


def check_frontier(settings: Settings, stages: Sequence[EnvPool]) -> None:
    """Raises: SettingsError where the stages have nothing that a frontier could be known by."""
    if settings.curriculum.sampling != "frontier":
        return
    if any(not (stage.has_finite_tasks or stage.task_at(0).skills) for stage in stages):
        raise SettingsError(
            "curriculum.sampling 'frontier' prefers skills and tasks that come again, and the "
            f"tasks of {settings.environment.id!r} have no skills and no end: take 'uniform'"
        )


def count_epoch_tasks(settings: Settings, stage: EnvPool) -> int:
    """Returns how many tasks an epoch has. Raises: SettingsError where they have no end."""
    if stage.num_tasks is None:
        why = f"those of {settings.environment.id!r} are drawn without end: give a number"
        if stage.has_finite_tasks:
            why = "tasks are drawn by skill; set skill_mode='all', or give a number"
        raise SettingsError(
            f"output.checkpoint_interval 'epoch' needs a set of tasks that is gone through (a task "
            f"file), and {why}"
        )
    return stage.num_tasks


class SpreadRates:
    """How often groups had spread lately: by skill, by combination of skills, and by task.

    A rate is (s + m) / (n + 1): n counts the groups, s those with spread, both decayed, and m is
    what was expected without them. That is 1 for a skill, so that new ones are tried, the mean of
    its skills for a combination, and the rate of its combination for a task. `sums`: the decayed s
    and n by name.
    """

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}

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
            num_spread, num_groups = self.sums.get(key, (0.0, 0.0))
            self.sums[key] = [_DECAY * num_spread + is_spread, _DECAY * num_groups + 1]

    def _rate(self, key: str, expected: float) -> float:
        num_spread, num_groups = self.sums.get(key, (0.0, 0.0))
        return (num_spread + expected) / (num_groups + 1)


def _keys(skills: Sequence[str], task: str | None) -> list[list[str]]:
    """Returns the names of the rates that tell of a task, the most general first."""
    keys = [[f"skill {skill}" for skill in skills]] if skills else []
    keys += [[f"skills {'+'.join(skills)}"]] if len(skills) > 1 else []
    return keys + ([[f"task {task}"]] if task is not None else [])


class TaskChoice:
    """The present stage, which of the next positions are taken, and what both are known by.

    `num_stages`: how many there are.
    """

    def __init__(self, settings: Settings) -> None:
        """Begins at the first stage.

        Raises: SettingsError, also where the tasks have nothing that a frontier could be known by.
        """
        self._seed, self._is_frontier = settings.seed, settings.curriculum.sampling == "frontier"
        self._rates = SpreadRates()
        self._pools: list[EnvPool] = []
        if self._is_frontier:
            self._pools = open_stages(settings)
        try:
            check_frontier(settings, self._pools)
        except SettingsError:
            self.close()
            raise
        curriculum = settings.curriculum
        self.num_stages = max(len(curriculum.stages), 1)
        self._progress: AdaptiveDifficulty | None = None
        if curriculum.stages:
            bounds = 0, self.num_stages - 1
            self._progress = AdaptiveDifficulty(
                bounds, curriculum.window, curriculum.promote_at, lower_at=None
            )

    @property
    def has_stages(self) -> bool:
        """Whether success moves the run from one stage to the next."""
        return self._progress is not None

    @property
    def stage(self) -> int:
        """The stage of the groups that are chosen now."""
        return self._progress.level if self._progress else 0

    def choose(self, take_positions: Callable[[int], range], num_groups: int) -> Sequence[int]:
        """Returns the positions of the next groups; of a frontier some of the next, at random.

        Candidate i with the weight w_i gets the number log(1 - u_i) / w_i, u_i uniform in [0, 1),
        and those with the largest numbers are taken: a weighted draw without replacement.
        Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir".
        """
        if not self._is_frontier:
            return take_positions(num_groups)
        positions = take_positions(num_groups * _CANDIDATES_PER_GROUP)
        stage, pool = self.stage, self._pools[self.stage]
        tasks = [pool.task_at(position) for position in positions]
        chances = [self._rates.estimate(t.skills, self._name(stage, t.task_id)) for t in tasks]
        rng = np.random.default_rng([self._seed, _CHOICE_STREAM, positions.start])
        numbers = np.log1p(-rng.random(len(positions))) / (np.array(chances) + _LEAST_WEIGHT)
        best = np.argsort(-numbers, kind="stable")[:num_groups]
        return sorted(positions[int(index)] for index in best)

    def record_group(self, stage: int, episodes: Sequence[EpisodeRecord]) -> None:
        """Learns from a group; of one that was left out there are no episodes."""
        if episodes and self._is_frontier:
            first = episodes[0]
            name = self._name(stage, first.task_id)
            self._rates.record(first.skills, name, has_spread(episodes))
        for episode in episodes:
            if self._progress is not None and stage == self._progress.level:
                self._progress.record(episode.outcome is Outcome.SUCCESS)

    def metrics(self) -> dict[str, float]:
        """Returns the stage, where success moves it."""
        return {"curriculum/stage": float(self.stage)} if self.has_stages else {}

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint needs, JSON-able."""
        progress = self._progress.state_dict() if self._progress else None
        return {"difficulty": progress, "rates": dict(self._rates.sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self._rates.sums = dict(state["rates"])
        if self._progress is not None:
            self._progress.load_state_dict(state["difficulty"])

    def close(self) -> None:
        """Closes the environments that told of tasks; idempotent."""
        for pool in self._pools:
            pool.close()

    def _name(self, stage: int, task_id: str) -> str | None:
        """Returns a task's name in the rates; None where it will not come again."""
        return f"{stage} {task_id}" if self._pools[stage].has_finite_tasks else None
