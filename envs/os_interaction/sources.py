"""Where OS-interaction's tasks come from: a file or the generator, by skill."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agentpeft.envs.core.errors import SettingsError, check_path, shown
from agentpeft.envs.os_interaction.generator.generator import OSGenerator
from agentpeft.envs.os_interaction.loaders import load_tasks
from agentpeft.envs.os_interaction.skills import SKILLS
from agentpeft.envs.os_interaction.tasks import OSTask
from agentpeft.envs.tasks.skill_generator import GeneratorOptions, choose_tasks, read_skills
from agentpeft.envs.tasks.taskset import Taskset, TaskSource


def make_task_source(
    files: tuple[str | Path | None, str | Path | None],
    skills: Sequence[str] | None,
    skill_mode: str,
    num_skills: int | None,
    options: GeneratorOptions,
    live_checks: bool | None = None,
) -> TaskSource[OSTask]:
    """Returns the source of an environment's tasks; `files` are its data and scripts.

    Raises: SettingsError, DataError.
    """
    data, scripts = files
    if live_checks is not None and not isinstance(live_checks, bool):
        raise SettingsError(f"live_checks must be True, False or None, got {shown(live_checks)}")
    check_path("data", data)
    check_path("scripts", scripts)
    chosen = read_skills(skills, skill_mode, SKILLS)
    generated = {"num_skills": num_skills, **asdict(options)}
    if data is None:
        if scripts is not None:
            raise SettingsError(
                f"scripts={shown(str(scripts))} are for the tasks of a file; give data"
            )
        if live_checks is not None:
            raise SettingsError(
                f"live_checks={shown(live_checks)} is for the tasks of a file; give data"
            )
        return OSGenerator(chosen, skill_mode=skill_mode, **generated)

    def load() -> Taskset[OSTask]:
        return load_tasks(data, scripts, live_checks)

    return choose_tasks(load, skills and chosen, skill_mode, generated)
