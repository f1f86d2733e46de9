"""Unlimited OS tasks for any skill or set of skills, each remade from its id."""

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from random import Random

from agentpeft.envs.os_interaction.generator.families import FAMILIES
from agentpeft.envs.os_interaction.generator.families.family import StepFamily
from agentpeft.envs.os_interaction.generator.scene import Scene
from agentpeft.envs.os_interaction.generator.world import expected_state, render_setup
from agentpeft.envs.os_interaction.skills import SKILLS, check_skills
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict
from agentpeft.envs.tasks.skill_generator import GeneratorOptions, NoTaskHereError, SkillGenerator
from agentpeft.envs.tasks.splits import Split
from agentpeft.envs.tasks.streams import TaskStream, stages_by_skills

_MAX_SCENES = 100


class OSGenerator(SkillGenerator[OSTask, GeneratorOptions]):
    """Makes tasks whose gold commands show given skills, with no others than those need.

    Several skills make several steps, which often go on with what an earlier one has made. Doing
    nothing never is right. `draw` picks skills and a number, and these with the options are the
    task's id, so `get` remakes it, in any process. Thread-safe.
    """

    known_skills = SKILLS

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
            split: "train" and "test" tasks have no word of names and contents in common. Not held
                out are numbers, the top directories and the endings of names.
            invent: made-up words. See `GeneratorOptions`.

        Raises: SettingsError.
        """
        options = GeneratorOptions(max_phrasings, split, invent)
        super().__init__(skills, skill_mode, num_skills, options)

    def make(
        self, task_id: str, skills: tuple[str, ...], options: GeneratorOptions
    ) -> OSTask | None:
        """See `SkillGenerator.make`."""
        rng = Random(task_id)
        for _ in range(_MAX_SCENES):
            families = _pick_families(rng, skills)
            with suppress(NoTaskHereError):
                return _make_task(task_id, families, Scene(rng, options))
        return None


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


def _make_task(task_id: str, families: list[StepFamily], scene: Scene) -> OSTask:
    """Returns a task of these families' steps. Raises: NoTaskHereError."""
    steps = [family.make(scene, may_ask=family is families[-1]) for family in families]
    if scene.world == scene.initial and steps[-1].answer is None:
        raise NoTaskHereError
    shown = {skill for family in families for skill in family.skills}
    words = reduce(lambda a, b: scene.speaker.say("then", a=a, b=b), [s.words for s in steps])
    return OSTask(
        task_id=task_id,
        instruction=words,
        skills=check_skills(shown),
        verdict=Verdict(expected_state(scene.initial, scene.world), steps[-1].answer),
        setup=Script(render_setup(scene.initial)),
        gold=Script("\n".join(step.gold for step in steps)),
        wants_answer=steps[-1].answer is not None,
    )


def _pick_families(rng: Random, skills: tuple[str, ...]) -> list[StepFamily]:
    """Returns families that show the skills together, with as few others as each skill allows."""
    chosen: list[StepFamily] = []
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
