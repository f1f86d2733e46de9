"""The tiny model, made once and then read from a cache by what it depends on.

Files of tasks and of chats are known by their content, so that it is the same on every machine, and
so is the code of environments, a user's too.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from modulefinder import ModuleFinder
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import agentpeft.envs
import agentpeft.policies
from agentpeft.envs import SettingsError
from agentpeft.envs.registration import find_creator, find_own_module
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.models.policy_base import PolicyBase, Progress, compute_fingerprint
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import SOURCES, drawn_kwargs
from agentpeft.policies.settings.model import CHAT_SETTINGS
from agentpeft.policies.settings.named_files import hash_named, rename_files

logger = logging.getLogger(__name__)
CACHE_VARIABLE = "AGENTPEFT_CACHE"
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
    """Returns 16 hexadecimal digits over the settings and the source that the model depends on."""
    fields = {"tiny", "environment", "warm_start", "seed"}
    by_content = rename_files(settings, _hash_if_there)
    wanted = by_content.model_dump(include=fields)
    wanted["chats"] = by_content.warm_start_chats
    wanted["model"] = settings.model.model_dump(include=CHAT_SETTINGS)
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True, default=repr).encode())
    (suite,) = map(Path, agentpeft.envs.__path__)
    (policies,) = map(Path, agentpeft.policies.__path__)
    folder = _environment_folder(settings.environment.id, suite)
    theirs = (path for path in folder.rglob("*") if path.suffix in {".py", ".txt", ".toml"})
    shared = (path for name in ("core", "tasks") for path in (suite / name).glob("*.py"))
    makers = (path for name in ("models", "rollout") for path in (policies / name).glob("*.py"))
    shape = policies / "settings" / "model.py"
    users = (path for env_id in _environment_ids(settings) for path in _user_files(env_id))
    for path in (shape, *sorted(makers), *sorted(shared), *sorted(theirs), *users):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _hash_if_there(name: str) -> str:
    return hash_named(name) or name


def _environment_folder(env_id: str, suite: Path) -> Path:
    """Returns the folder of an environment of ours; the suite's for one from elsewhere."""
    module = find_own_module(env_id)
    return suite if module is None else suite.parent.joinpath(*module.split(".")[1:-1])


def _environment_ids(settings: Settings) -> list[str]:
    """Returns the ids of the environments that are imitated: a mixture's, and its sources'."""
    kwargs = [kw for kw in settings.warm_start_kwargs if SOURCES in kw]
    sources = {str(source["id"]) for mixture in kwargs for source in drawn_kwargs(mixture)}
    return [settings.environment.id, *sorted(sources)]


def _user_files(env_id: str) -> Iterator[Path]:
    """Yields the source files of an environment from elsewhere; none of one of this suite.

    They are its whole package; of a module outside of packages that module, and what it imports
    from its own folder. Raises: SettingsError.
    """
    module = None if find_own_module(env_id) else getattr(find_creator(env_id), "__module__", None)
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    if file is None:  # it is typed in, as in an interpreter
        return
    roots = getattr(sys.modules.get(str(module).partition(".")[0]), "__path__", None)
    if roots is not None:
        yield from sorted(path for root in roots for path in Path(root).rglob("*.py"))
        return
    yield Path(file)
    folder = Path(file).parent
    if folder.name not in ("site-packages", "dist-packages"):
        finder = ModuleFinder([str(folder)])
        finder.run_script(file)
        found = {str(getattr(m, "__file__", None)) for m in finder.modules.values()} - {file}
        yield from sorted(Path(path) for path in found if path.endswith(".py"))


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
