"""Task files named by a `data` setting: a file, or a file and an index of some of its tasks."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from agentpeft.envs.core.errors import DataError, SettingsError, check_choice, check_path, shown
from agentpeft.envs.tasks.records import unique_fields
from agentpeft.envs.tasks.task import TaskT
from agentpeft.envs.tasks.taskset import Taskset

TaskData: TypeAlias = str | Path | Mapping[str, str | Path]
"""A path, or `{"tasks": path, "index": path}`: the second lists ids by skill, as
`prepare_data single-skill --index` writes them. Without `tasks`, those of the `entry_dict.json`
beside the index.
"""
_KEYS = ("tasks", "index")
_BESIDE = "entry_dict.json"


def check_data(data: TaskData | None) -> None:
    """Raises: SettingsError unless a `data` setting is None, a path, or a mapping with an index."""
    if not isinstance(data, Mapping):
        check_path("data", data)
        return
    for key in data:
        check_choice("key of data", key, _KEYS)
    if data.get("index") is None:
        raise SettingsError(f"data needs a path under 'index', got {shown(dict(data))}")
    for key, path in data.items():
        check_path(f"data.{key}", path)


def find_files(data: Mapping[str, str | Path]) -> dict[str, Path]:
    """Returns the paths of the tasks and of their index. Raises: SettingsError."""
    check_data(data)
    index, tasks = Path(data["index"]).expanduser(), data.get("tasks")
    files = {"tasks": Path(tasks or index.parent / _BESIDE).expanduser(), "index": index}
    if tasks is None and not files["tasks"].is_file():
        raise SettingsError(f"no {_BESIDE} is beside {index}: name its task file under 'tasks'")
    return files


def load_data(data: TaskData, load: Callable[[str | Path], Taskset[TaskT]]) -> Taskset[TaskT]:
    """Returns a file's tasks, or those that an index lists, in the file's order.

    `load` reads the file. Raises: DataError, SettingsError.
    """
    if not isinstance(data, Mapping):
        return load(data)
    files = find_files(data)
    tasks, wanted = load(files["tasks"]), _read_index(files["index"])
    for task_id in sorted(wanted.difference(task.task_id for task in tasks)):
        raise DataError(f"{files['index']}: no task {task_id!r} in {files['tasks']}")
    return Taskset((task for task in tasks if task.task_id in wanted), tasks.name)


def _read_index(path: Path) -> set[str]:
    """Returns all ids of an index. Raises: DataError."""
    try:
        text = path.read_text(encoding="utf-8")
        index = json.loads(text, object_pairs_hook=unique_fields)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    lists = list(index.values()) if isinstance(index, dict) else []
    are_lists = all(isinstance(ids, list) for ids in lists)
    ids = [task_id for ids in lists for task_id in ids] if are_lists else []
    if not (ids and all(isinstance(task_id, str | int) for task_id in ids)):
        raise DataError(f"{path}: no index, which is an object with a list of task ids by skill")
    return {str(task_id) for task_id in ids}
