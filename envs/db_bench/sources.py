"""Where DB-bench's tasks come from: a file or the generator, by skill."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from agentpeft.envs.db_bench.generator import DBBenchGenerator
from agentpeft.envs.db_bench.generator_options import GeneratorOptions
from agentpeft.envs.db_bench.loaders import load_tasks
from agentpeft.envs.db_bench.skills import check_skills
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.errors import SettingsError
from agentpeft.envs.tasks import SingleSkillSource, SkillMode, TaskSource


def make_task_source(
    data: str | Path | None,
    skills: Sequence[str] | None,
    skill_mode: str,
    num_skills: int | None,
    options: GeneratorOptions,
) -> TaskSource[DBBenchTask]:
    """Returns the source of an environment's tasks. Raises: SettingsError, DataError."""
    if skill_mode not in get_args(SkillMode):
        raise SettingsError(f"skill_mode must be 'single' or 'all', got {skill_mode!r}")
    if skills is not None:
        skills = _check_skills(skills)
    if data is None:
        return DBBenchGenerator(
            skills, skill_mode=skill_mode, num_skills=num_skills, **asdict(options)
        )
    if not isinstance(data, str | Path):
        raise SettingsError(f"data must be a path or None, got {data!r:.60}")
    for name, value in {"num_skills": num_skills, **asdict(options)}.items():
        if value not in (None, False):
            raise SettingsError(f"{name}={value!r} is for generated tasks; data has its own")
    tasks = load_tasks(data)
    if skills is None:
        return tasks
    return SingleSkillSource(tasks, skills) if skill_mode == "single" else tasks.filter(skills)


def _check_skills(skills: Sequence[str] | str) -> tuple[str, ...]:
    names = [skills] if isinstance(skills, str) else skills
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"skills are names, got {skills!r:.60}")
    if not names:
        raise SettingsError("skills must name at least one skill, or be None for all")
    return check_skills(names)
