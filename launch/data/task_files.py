"""Task files that a run names and that are missing are made on the way."""

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, get_args

from agentpeft.envs import SettingsError
from agentpeft.envs.registration import get_env_name
from agentpeft.envs.tasks.hub import HUB_PREFIX
from agentpeft.envs.tasks.task import Split
from agentpeft.envs.tasks.task_files import find_files
from agentpeft.launch import prepare_data
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)
_Maker = Callable[[Path, Mapping[str, Any], int], None]
_NUM_TASKS = 2000
_SEEDS = {"environment": 0, "warm_start": 1, "evaluation": 2}
"""Each section's tasks are drawn with a seed of its own, so that none is seen twice; those of the
curriculum's stages with the numbers that follow.
"""


def with_task_files(settings: Settings) -> Settings:
    """Returns the settings with absolute paths of chats, and of task files, which are all there.

    Raises: SettingsError where one cannot be made.
    """
    changed: dict[str, Any] = {}
    for name, seed in _SEEDS.items():
        section = dict(settings)[name]
        key = "kwargs" if name == "environment" else "env_kwargs"
        kwargs = dict(section)[key]
        if isinstance(kwargs, tuple):  # stages, which share the files of the first
            located: object = (_locate(kwargs[0], settings, seed), *kwargs[1:])
        else:
            located = _locate(kwargs, settings, seed)
        changed[name] = section.model_copy(update={key: located})
    chats = settings.training.chats
    if chats is not None and not chats.startswith(HUB_PREFIX):
        path = str(Path(chats).expanduser().absolute())
        changed["training"] = settings.training.model_copy(update={"chats": path})
    stages = enumerate(settings.curriculum.stages, len(_SEEDS))
    located_stages = tuple(_locate(stage, settings, seed) for seed, stage in stages)
    changed["curriculum"] = settings.curriculum.model_copy(update={"stages": located_stages})
    return settings.model_copy(update=changed)


def _locate(kwargs: dict[str, Any], settings: Settings, seed: int) -> dict[str, Any]:
    """Returns keyword arguments with their task file's absolute path; it is made if missing."""
    if isinstance(kwargs.get("data"), dict):  # a file and an index, neither of which is made
        files = find_files(kwargs["data"])
        return {**kwargs, "data": {key: str(path.absolute()) for key, path in files.items()}}
    path = _task_path(kwargs)
    if path is None:
        return kwargs
    if not path.exists():
        _make(path, settings.environment.id, {**settings.environment.kwargs, **kwargs}, seed)
    return {**kwargs, "data": str(path)}


def _task_path(kwargs: Mapping[str, Any]) -> Path | None:
    data = kwargs.get("data")
    is_path = isinstance(data, str) and data != "hub"
    return Path(data).expanduser().absolute() if is_path and data else None


def missing_task_file(env_id: str, kwargs: Mapping[str, Any]) -> Path | None:
    """Returns an environment's task file where it is missing and would be made."""
    path = _task_path(kwargs)
    is_missing = path is not None and not path.exists()
    return path if is_missing and get_env_name(env_id) in _MAKERS else None


def _make(path: Path, env_id: str, kwargs: Mapping[str, Any], seed: int) -> None:
    maker = _MAKERS.get(get_env_name(env_id))
    if maker is None:
        raise SettingsError(f"no task file {path}, and {env_id} has no generator of files")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with redirect_stdout(sys.stderr):
            maker(path, kwargs, seed)
    except OSError as error:
        raise SettingsError(f"cannot make task file {path}: {error.strerror}") from None
    logger.info("%s was missing: made %d generated tasks, seed %d", path, _NUM_TASKS, seed)


def _make_entries(env_id: str, path: Path, kwargs: Mapping[str, Any], seed: int) -> None:
    prepare_data.write_generated(
        path,
        env_id,
        _NUM_TASKS,
        seed,
        skills=kwargs.get("skills"),
        skill_mode=kwargs.get("skill_mode", "single"),
        split=_split_of(seed),
    )


def _split_of(seed: int) -> Split:
    """Returns the half of the generator's tasks that a section has."""
    return "test" if seed == _SEEDS["evaluation"] else "train"


def _make_gsm8k(path: Path, _kwargs: Mapping[str, Any], seed: int) -> None:
    """Writes one JSONL file, or a folder with both splits, of templates' word problems."""
    if path.suffix == ".jsonl":
        prepare_data.write_word_problems(path, _NUM_TASKS, seed, _split_of(seed))
        return
    path.mkdir()
    for split in get_args(Split):
        prepare_data.write_word_problems(path / f"{split}.jsonl", _NUM_TASKS, seed, split)


_MAKERS: dict[str, _Maker] = {
    "AgentPEFT/DBBench-v0": partial(_make_entries, "AgentPEFT/DBBench-v0"),
    "AgentPEFT/OSInteraction-v0": partial(_make_entries, "AgentPEFT/OSInteraction-v0"),
    "AgentPEFT/GSM8K-v0": _make_gsm8k,
}
