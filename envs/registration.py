"""Environment ids as `gymnasium.make` reads them: `name`, or `module:name`.

`gymnasium.spec` and the registry know only the name. Settings look here, which a learner reads
where there is no gymnasium: it is imported where an id is looked up.
"""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from agentpeft.envs.core.errors import SettingsError, did_you_mean, import_user_module

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

_ALIKE = 0.85
"""How alike a name and the one that may be meant are: all of the suite's begin and end alike."""
_ENV_ID = re.compile(r"[\w.]+:[^:=]+|([\w-]+/)?[\w.-]+-v\d+")
"""`module:name`, or a name with a version."""


def get_env_name(env_id: str) -> str:
    """Returns an id without its module.

    >>> get_env_name("agentpeft.envs:AgentPEFT/GSM8K-v0")
    'AgentPEFT/GSM8K-v0'
    """
    return env_id.rpartition(":")[2]


def is_env_id(text: str) -> bool:
    """Returns whether a word is written as an environment's id, and names no file or folder.

    >>> is_env_id("AgentPEFT/GSM8K-v0"), is_env_id("mine:Sort"), is_env_id("outputs/run")
    (True, True, False)
    """
    return _ENV_ID.fullmatch(text) is not None and not Path(text).exists()


def find_spec(env_id: str) -> "EnvSpec":
    """Imports an id's module, if it has one, and returns what is registered under its name.

    Raises: SettingsError if there is no such name, or the module cannot be imported.
    """
    import gymnasium

    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_user_module(module)
    except SettingsError as error:
        raise SettingsError(f"environment {env_id!r}: {error}") from error
    if name not in gymnasium.registry:
        suite = [key for key in gymnasium.registry if key.startswith("AgentPEFT/")]
        near = get_close_matches(name[:100], gymnasium.registry, cutoff=_ALIKE)
        hint = did_you_mean(name, near or suite, cutoff=_ALIKE)
        raise SettingsError(f"unknown environment {name!r}{hint}")
    return gymnasium.registry[name]


def find_own_module(env_id: str) -> str | None:
    """Returns the module of an environment of this suite; None of one from elsewhere.

    Raises: as `find_spec`.
    """
    module = str(find_spec(env_id).entry_point).partition(":")[0]
    return module if module.startswith(("agentpeft.envs.", "agentpeft.apps.")) else None


def find_creator(env_id: str) -> object:
    """Returns the class or function that makes an environment. Raises: as `find_spec`."""
    from gymnasium.envs.registration import load_env_creator

    creator: object = find_spec(env_id).entry_point
    return load_env_creator(creator) if isinstance(creator, str) else creator
