"""The tiny model, made once and then read from a cache by what it depends on.

Files of tasks and of chats are known by their content, so that it is the same on every machine, and
so is the code of environments, a user's too.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from modulefinder import ModuleFinder
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import agentpeft.envs
import agentpeft.policies
from agentpeft.envs import SettingsError
from agentpeft.envs.registration import find_creator, find_own_module, find_spec, get_env_name
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.models.policy_base import PolicyBase, Progress, compute_fingerprint
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import MIXTURE, drawn_kwargs
from agentpeft.policies.settings.model import CHAT_SETTINGS
from agentpeft.policies.settings.named_files import hash_named, rename_files

logger = logging.getLogger(__name__)
CACHE_VARIABLE = "AGENTPEFT_CACHE"
_FOLDER = re.compile("tiny-([0-9a-f]{16})")
_SOURCES = {".py", ".txt", ".toml"}
_keys: dict[tuple[str, tuple[object, ...]], str] = {}
"""By the settings that matter and what makes users' environments."""
_MAX_WRITES = 3
"""Another process may have found the entry damaged before, and delete it after it was mended."""


def load_tiny(settings: Settings, progress: Progress | None = None) -> PolicyBase:
    """Returns the tiny model in float32 on the CPU, from the cache where it is there and whole.

    Raises: SettingsError if it cannot be made, or the cache cannot be written.
    """
    folder = cache_dir() / f"tiny-{compute_key(settings)}"
    if (base := _read(folder)) is not None:
        return base
    from agentpeft.policies.models.pretrain import make_tiny  # one in the cache needs none of it

    made = make_tiny(settings, progress)
    for _ in range(_MAX_WRITES):
        try:
            _write(made, folder)
        except (OSError, SafetensorError) as error:
            raise SettingsError(
                f"the cache {folder.parent} cannot be written ({error}); set {CACHE_VARIABLE}"
            ) from None
        if (base := _read(folder)) is not None:
            return base
    raise SettingsError(f"the cache entry {folder} is damaged as soon as it is written")


def cache_dir() -> Path:
    """Returns `$AGENTPEFT_CACHE`, or the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/agentpeft").expanduser().resolve()


def compute_key(settings: Settings) -> str:
    """Returns 16 hexadecimal digits over the settings and the source that the model depends on.

    Of a process that has imported a user's environment it stays the same, whatever becomes of the
    files, until the environment is imported anew. Raises: SettingsError.
    """
    wanted, creators = _describe(settings)
    place = wanted, tuple(creators.values())
    if place not in _keys:
        _keys[place] = _hash(settings, wanted, creators)
    return _keys[place]


def keep_key(settings: Settings, key: str) -> None:
    """Has this process take the model of a key for these settings: the driver's, or a run's own.

    Raises: SettingsError.
    """
    wanted, creators = _describe(settings)
    _keys[wanted, tuple(creators.values())] = key


def keep_base(settings: Settings, name: str) -> None:
    """Has this process take the model in a folder for these settings, if it is still in the cache.

    `name` is the base that a run's adapter names. Raises: SettingsError.
    """
    match = _FOLDER.fullmatch(Path(name).name)
    if match and (cache_dir() / match[0]).is_dir():
        keep_key(settings, match[1])


def is_cached_name(name: str) -> bool:
    """Returns whether a base's folder is named as the cache names its own."""
    return _FOLDER.fullmatch(Path(name).name) is not None


def _describe(settings: Settings) -> tuple[str, dict[str, object]]:
    """Returns the settings that the model depends on, and users' environments by their ids.

    These are what makes them, as it is imported here.
    """
    fields = {"tiny", "environment", "warm_start", "seed"}
    by_content = rename_files(settings, _hash_if_there)
    wanted = by_content.model_dump(include=fields)
    wanted["chats"] = by_content.warm_start_chats
    wanted["model"] = settings.model.model_dump(include=CHAT_SETTINGS)
    ids = {settings.environment.id}
    if get_env_name(settings.environment.id) == MIXTURE:
        kwargs = (source for stage in settings.warm_start_kwargs for source in drawn_kwargs(stage))
        ids |= {source["id"] for source in kwargs if isinstance(source.get("id"), str)}
    creators = {name: find_creator(name) for name in sorted(ids) if not find_own_module(name)}
    return json.dumps(wanted, sort_keys=True, default=repr), creators


def _hash(settings: Settings, wanted: str, creators: dict[str, object]) -> str:
    digest = hashlib.sha256(wanted.encode())
    (suite,) = map(Path, agentpeft.envs.__path__)
    (policies,) = map(Path, agentpeft.policies.__path__)
    folder = _environment_folder(settings.environment.id, suite)
    theirs = (path for path in folder.rglob("*") if path.suffix in _SOURCES)
    shared = (path for name in ("core", "tasks") for path in (suite / name).glob("*.py"))
    makers = (path for name in ("models", "rollout") for path in (policies / name).glob("*.py"))
    shape = policies / "settings" / "model.py"
    for path in (shape, *sorted(makers), *sorted(shared), *sorted(theirs)):
        digest.update(path.read_bytes())
    for env_id, creator in creators.items():
        digest.update(repr(sorted(find_spec(env_id).kwargs.items())).encode())
        function = creator.func if isinstance(creator, partial) else creator
        names = {env_id.rpartition(":")[0], str(getattr(function, "__module__", ""))}
        for path in sorted({path for name in names for path in _files_of_module(name)}):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _hash_if_there(name: str) -> str:
    return hash_named(name) or name


def _environment_folder(env_id: str, suite: Path) -> Path:
    """Returns the folder of an environment of ours; the suite's for one from elsewhere."""
    module = find_own_module(env_id)
    return suite if module is None else suite.parent.joinpath(*module.split(".")[1:-1])


def _files_of_module(name: str) -> Iterator[Path]:
    """Yields the source files of an imported module: those of its whole package.

    Of a module outside of packages, that one and what it imports from its own folder. One that is
    typed in, as in an interpreter, has none.
    """
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return
    roots = getattr(sys.modules.get(name.partition(".")[0]), "__path__", None)
    if roots is not None:
        paths = (path for root in roots for path in Path(root).rglob("*"))
        yield from (path for path in paths if path.suffix in _SOURCES and path.is_file())
        return
    yield Path(file)
    folder = Path(file).parent
    if file.endswith(".py") and folder.name not in ("site-packages", "dist-packages"):
        finder = ModuleFinder([str(folder)])
        finder.run_script(file)
        found = (str(getattr(module, "__file__", None)) for module in finder.modules.values())
        yield from (Path(path) for path in found if path.endswith(".py"))


def _read(folder: Path) -> PolicyBase | None:
    """Returns a whole entry; None where there is none or it is damaged, which is then deleted."""
    if not folder.exists():
        return None
    problem = "its weights are others than when it was made"
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        base = PolicyBase(model.train(False), tokenizer, str(folder))
        if base.fingerprint == compute_fingerprint(model):
            return base
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        problem = str(error)
    logger.warning("the cached model %s is damaged and is made again: %s", folder, problem)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _write(base: PolicyBase, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with making(folder, kind="tiny") as new:
            base.model.save_pretrained(new)
            base.tokenizer.save_pretrained(new)
    except OSError:
        if not folder.exists():  # else another process was first: its entry is as good
            raise
