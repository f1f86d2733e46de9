"""Unlimited DB-bench tasks for any skill or set of skills, each remade from its id."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import numpy as np

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.db_bench.generator.attempt import Attempt
from agentpeft.envs.db_bench.generator.reads import select
from agentpeft.envs.db_bench.generator.tables import TableOptions, make_sample
from agentpeft.envs.db_bench.generator.writes import delete, insert, update
from agentpeft.envs.db_bench.skills import (
    GROUP_BY,
    HAVING_CONDITIONS,
    LIMIT,
    ORDER_BY,
    SKILLS,
    WHERE,
    WRITES,
    check_skills,
)
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.tasks.phrases import Speaker, read_toml
from agentpeft.envs.tasks.skill_generator import NoTaskHereError, SkillGenerator
from agentpeft.envs.tasks.task_random import TaskRandom

_MAX_TABLES = 300
_DRAFTS_PER_TABLE = 8
_CHOOSES_ROWS = (*WHERE, *ORDER_BY, "limit_only")
_FAMILIES: dict[str, tuple[Callable[[Attempt], DBBenchTask], Collection[str]]] = {
    "insert": (insert, ()),
    "delete": (delete, _CHOOSES_ROWS),
    "update": (update, _CHOOSES_ROWS),
    "select": (select, [skill for skill in SKILLS if skill not in WRITES]),
}
"""By the skill that a kind of statement always shows: what drafts one, and what else it can show.

They raise NoTaskHereError where an attempt gives no statement whose every part matters.
"""
_EXCLUSIVE = (
    (WRITES, "a statement is one of them"),
    (WHERE, "one WHERE clause is one of them"),
    (GROUP_BY, "a GROUP BY has one column or several"),
    (HAVING_CONDITIONS, "a HAVING has one condition or several"),
    (ORDER_BY, "one ORDER BY is one of them"),
    (LIMIT, "a LIMIT has an offset or none"),
    (("subquery_single", "subquery_multiple"), "the number of subqueries is one or more"),
    (("subquery_single", "subquery_nested"), "nesting takes two subqueries"),
)

PHRASES = read_toml(__file__, "data/phrases.toml")


def find_conflict(skills: Sequence[str]) -> str | None:
    """Returns why no statement of the generator has all of these skills; None if some has."""
    for group, reason in _EXCLUSIVE:
        both = [skill for skill in skills if skill in group]
        if len(both) > 1:
            return f"{both[0]} and {both[1]} exclude each other: {reason}"
    name = _find_family(skills)
    for skill in sorted({*skills} - {name, *_FAMILIES[name][1]}):
        return f"{name} and {skill} exclude each other: {name.upper()} has no such part"
    has_order = not set(ORDER_BY).isdisjoint(skills)
    if name in WRITES and has_order and "limit_only" not in skills:
        return f"an order changes nothing in {name} without limit_only"
    return None


def _find_family(skills: Collection[str]) -> str:
    """Returns the family of the statements that show some skills: SELECT where none is a change."""
    return next((name for name in ("insert", "delete", "update") if name in skills), "select")


class DBBenchGenerator(SkillGenerator[DBBenchTask, TableOptions]):
    """Makes tasks that show given skills, with no others than those need.

    Every part of a gold statement matters: without any one of its conditions, keys or limits the
    answer would be another. No answer is empty. `TableOptions` explains the options.
    """

    known_skills = SKILLS
    options_type = TableOptions

    def make(
        self, task_id: str, skills: tuple[str, ...], options: TableOptions
    ) -> DBBenchTask | None:
        """See `SkillGenerator.make`."""
        rng = TaskRandom(task_id)
        draft, _ = _FAMILIES[_find_family(skills)]
        for _ in range(_MAX_TABLES):
            sample = make_sample(rng, skills, options)
            speaker = Speaker(PHRASES, rng, options.max_phrasings)
            for _ in range(_DRAFTS_PER_TABLE):
                with suppress(NoTaskHereError):
                    return draft(Attempt(rng, speaker, sample, frozenset(skills), task_id))
        return None

    def _fit(self, skills: tuple[str, ...]) -> bool:
        return super()._fit(skills) and find_conflict(skills) is None

    def _pick_skills(self, rng: np.random.Generator) -> tuple[str, ...]:
        """Returns `num_skills` skills that fit together. Raises: SettingsError."""
        if self.num_skills == 1:
            return (self.skills[int(rng.integers(len(self.skills)))],)
        if self.num_skills == len(self.skills):
            conflict = find_conflict(self.skills)
            if conflict:
                raise SettingsError(conflict)
            return self.skills
        for _ in range(200):
            chosen: tuple[str, ...] = ()
            for index in rng.permutation(len(self.skills)):
                together = check_skills((*chosen, self.skills[index]))
                conflict = find_conflict(together)
                if conflict is None and len(together) == self.num_skills:
                    return together
                if conflict is None or not find_conflict(check_skills((*together, "limit_only"))):
                    chosen = together
        raise SettingsError(f"no {self.num_skills} of these skills fit together: {self.skills}")
