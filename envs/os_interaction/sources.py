"""Where OS-interaction's tasks come from: a file or the generator, by skill."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from agentpeft.envs.errors import SettingsError
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.generator_options import GeneratorOptions
from agentpeft.envs.os_interaction.loaders import load_tasks
from agentpeft.envs.os_interaction.skills import check_skills
from agentpeft.envs.os_interaction.tasks import OSTask
from agentpeft.envs.tasks import SingleSkillSource, SkillMode, TaskSource


def make_task_source(
    files: tuple[str | Path | None, str | Path | None],
    skills: Sequence[str] | None,
    skill_mode: str,
    num_skills: int | None,
    options: GeneratorOptions,
) -> TaskSource[OSTask]:
    """Returns the source of an environment's tasks; `files` are its data and scripts.

    Raises: SettingsError, DataError.
    """
    data, scripts = files
    if skill_mode not in get_args(SkillMode):
        raise SettingsError(f"skill_mode must be 'single' or 'all', got {skill_mode!r}")
    if skills is not None:
        skills = check_skills([skills] if isinstance(skills, str) else skills)
        if not skills:
            raise SettingsError("skills must name at least one skill, or be None for all")
    if data is None:
        if scripts is not None:
            raise SettingsError(f"scripts={str(scripts)!r} are for the tasks of a file; give data")
        return OSGenerator(skills, skill_mode=skill_mode, num_skills=num_skills, **asdict(options))
    generated = {"num_skills": num_skills, **asdict(options)}
    for name, value in generated.items():
        if value not in (None, False):
            raise SettingsError(f"{name}={value!r} is for generated tasks; data has its own")
    tasks = load_tasks(data, scripts)
    if skills is None:
        return tasks
    return SingleSkillSource(tasks, skills) if skill_mode == "single" else tasks.filter(skills)
