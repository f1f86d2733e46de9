"""Where a run's task files and chats are, for processes that work in another folder."""

from pathlib import Path
from typing import Any

from agentpeft.envs.tasks.hub import HUB_PREFIX
from agentpeft.envs.tasks.task_files import find_files
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.named_files import ENV_KWARGS


def with_task_files(settings: Settings) -> Settings:
    """Returns the settings with absolute paths of chats and of task files."""
    changed: dict[str, Any] = {}
    for name, key in ENV_KWARGS.items():
        section = dict(settings)[name]
        kwargs = dict(section)[key]
        is_one = isinstance(kwargs, dict)
        located: object = _locate(kwargs) if is_one else tuple(map(_locate, kwargs))
        changed[name] = section.model_copy(update={key: located})
    chats = settings.training.chats
    if chats is not None and not chats.startswith(HUB_PREFIX):
        path = str(Path(chats).expanduser().absolute())
        changed["training"] = settings.training.model_copy(update={"chats": path})
    return settings.model_copy(update=changed)


def _locate(kwargs: dict[str, Any]) -> dict[str, Any]:
    data = kwargs.get("data")
    if isinstance(data, dict):  # a file, and an index of some of its tasks
        files = find_files(data)
        return {**kwargs, "data": {key: str(path.absolute()) for key, path in files.items()}}
    if not isinstance(data, str) or data in ("", "hub"):
        return kwargs
    return {**kwargs, "data": str(Path(data).expanduser().absolute())}
