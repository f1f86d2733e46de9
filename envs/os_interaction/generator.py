"""Unlimited OS tasks for any skill or set of skills, each remade from its id."""

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from random import Random

import numpy as np

from agentpeft.envs.errors import SettingsError, UnknownTaskError
from agentpeft.envs.os_interaction.generator_families import FAMILIES, PHRASES, Family
from agentpeft.envs.os_interaction.generator_options import GeneratorOptions
from agentpeft.envs.os_interaction.generator_scene import NoTaskHereError, Scene
from agentpeft.envs.os_interaction.generator_world import expected_state, render_setup
from agentpeft.envs.os_interaction.skills import SKILLS, check_skills
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict
from agentpeft.envs.phrases import Speaker
from agentpeft.envs.splits import Split
from agentpeft.envs.streams import TaskStream, stages_by_skills

_MAX_DRAWS = 10
_MAX_SCENES = 100


class OSGenerator:
    """Makes tasks whose gold commands show given skills, with no others than those need.

    Several skills make several steps, which often go on with what an earlier one has made. Doing
    nothing never is right. `draw` picks skills and a number, and these with the options are the
    task's id, so `get` remakes it, in any process. Thread-safe.
    """

    def __init__(
        self,
        skills: Sequence[str] | None = None,
        *,
        skill_mode: str = "single",
        num_skills: int | None = None,
        max_phrasings: int | None = None,
        split: Split | None = None,
        invent: bool = False,
    ) -> None:
        """Checks the settings.

        Args:
            skills: names from `SKILLS`; None is all.
            skill_mode: "single": each task is for one of them; "all": has all of them.
            num_skills: with "all", each task has this many of them, drawn anew; None is all.
            max_phrasings: how many ways to say each thing, plainest first; None is every way.
            split: "train" and "test" tasks have no word of names and contents in common.
            invent: made-up words. See `GeneratorOptions`.

        Raises: SettingsError.
        """
        if skill_mode not in ("single", "all"):
            raise SettingsError(f"skill_mode must be 'single' or 'all', got {skill_mode!r}")
        if skill_mode == "single" and num_skills not in (None, 1):
            raise SettingsError(f"num_skills={num_skills} needs skill_mode 'all'")
        self.skills = SKILLS if skills is None else check_skills(skills)
        if not self.skills:
            raise SettingsError("skills must name at least one skill, or be None for all")
        wanted = 1 if skill_mode == "single" else num_skills
        self.num_skills = len(self.skills) if wanted is None else wanted
        self.options = GeneratorOptions(max_phrasings, split, invent)
        if not 1 <= self.num_skills <= len(self.skills):
            raise SettingsError(f"num_skills={num_skills} of {len(self.skills)} skills")

    def draw(self, rng: np.random.Generator) -> OSTask:
        """Returns a new task; the same `rng` state gives the same task.

        Raises: SettingsError where so many skills come together that none is found.
        """
        for _ in range(_MAX_DRAWS):
            chosen = rng.choice(len(self.skills), self.num_skills, replace=False)
            skills = check_skills(self.skills[index] for index in chosen)
            task = _make_task(skills, self.options, int(rng.integers(2**31)))
            if task is not None:
                return task
        raise SettingsError(f"no task was found that has {', '.join(skills)}; ask for fewer")

    def get(self, task_id: str) -> OSTask:
        """Returns the task of an id, also another generator's. Raises: UnknownTaskError."""
        names, _, rest = task_id.partition("/")
        text, _, seed = rest.partition("/")
        options = GeneratorOptions.of_id(text)
        skills = tuple(names.split("+"))
        is_known = skills == tuple(s for s in SKILLS if s in skills) and seed.isdecimal()
        task = _make_task(skills, options, int(seed)) if is_known and options else None
        if task is None or task.task_id != task_id:
            raise UnknownTaskError(
                f"{task_id!r} is no generated task's id (skill+skill/options/number)"
            )
        return task


def curriculum(
    seed: int,
    *,
    skills: Sequence[str] | None = None,
    tasks_per_stage: int = 1000,
    max_skills: int = 4,
) -> TaskStream[OSTask]:
    """Returns stages of 1, 2, … `max_skills` skills a task, drawn from `skills` (None: all)."""

    def make(number: int) -> OSGenerator:
        return OSGenerator(skills, skill_mode="all", num_skills=number)

    return TaskStream(stages_by_skills(make, tasks_per_stage, max_skills), seed)


def _make_task(skills: tuple[str, ...], options: GeneratorOptions, seed: int) -> OSTask | None:
    """Returns the task of an id; None where no attempt gave a proper one."""
    task_id = f"{'+'.join(skills)}/{options}/{seed}"
    rng = Random(task_id)
    for _ in range(_MAX_SCENES):
        families = _pick_families(rng, skills)
        speaker, scene = Speaker(PHRASES, rng, options.max_phrasings), Scene(rng, options)
        with suppress(NoTaskHereError):
            steps = [
                family.make(scene, speaker, may_ask=family is families[-1]) for family in families
            ]
            if scene.world == scene.initial and steps[-1].answer is None:
                raise NoTaskHereError
            shown = {skill for family in families for skill in family.skills}
            words = reduce(lambda a, b: speaker.say("then", a=a, b=b), [s.words for s in steps])
            return OSTask(
                task_id=task_id,
                instruction=words,
                skills=check_skills(shown),
                verdict=Verdict(expected_state(scene.initial, scene.world), steps[-1].answer),
                setup=Script(render_setup(scene.initial)),
                gold=Script("\n".join(step.gold for step in steps)),
                wants_answer=steps[-1].answer is not None,
            )
    return None


def _pick_families(rng: Random, skills: tuple[str, ...]) -> list[Family]:
    """Returns families that show the skills together, with as few others as each skill allows."""
    chosen: list[Family] = []
    missing = list(skills)
    rng.shuffle(missing)
    while missing:
        having = [family for family in FAMILIES if missing[0] in family.skills]
        others = [len(set(family.skills).difference(skills)) for family in having]
        fitting = [f for f, number in zip(having, others, strict=True) if number == min(others)]
        chosen.append(rng.choice(fitting))
        missing = [skill for skill in missing if skill not in chosen[-1].skills]
    rng.shuffle(chosen)
    return chosen
