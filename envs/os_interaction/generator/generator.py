"""Unlimited OS tasks for any skill or set of skills, each remade from its id."""

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

_MAX_SCENES = 100


class OSGenerator(SkillGenerator[OSTask, GeneratorOptions]):
    """Makes tasks whose gold commands show given skills, with no others than those need.

    Several skills make several steps, which often use what an earlier one has made. Doing
    nothing never is right. `split` holds out the words of names and contents, but not numbers, the
    top directories and the endings of names.
    """

    known_skills = SKILLS
    options_type = GeneratorOptions

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
