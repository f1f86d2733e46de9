"""Where DB-bench's tasks come from: a file or the generator, by skill."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agentpeft.envs.core.errors import check_path
from agentpeft.envs.db_bench.generator.generator import DBBenchGenerator
from agentpeft.envs.db_bench.generator.table_options import TableOptions
from agentpeft.envs.db_bench.loaders import load_tasks
from agentpeft.envs.db_bench.skills import SKILLS
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.tasks.skill_generator import choose_tasks, read_skills
from agentpeft.envs.tasks.taskset import TaskSource


def make_task_source(
    data: str | Path | None,
    skills: Sequence[str] | None,
    skill_mode: str,
    num_skills: int | None,
    options: TableOptions,
) -> TaskSource[DBBenchTask]:
    """Returns the source of an environment's tasks. Raises: SettingsError, DataError."""
    chosen = read_skills(skills, skill_mode, SKILLS)
    generated = {"num_skills": num_skills, **asdict(options)}
    check_path("data", data)
    if data is None:
        return DBBenchGenerator(chosen, skill_mode=skill_mode, **generated)
    return choose_tasks(lambda: load_tasks(data), skills and chosen, skill_mode, generated)
