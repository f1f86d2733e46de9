"""AgentPEFT's Gymnasium suite of text environments. Importing it registers them.

>>> import gymnasium as gym
>>> env = gym.make("agentpeft.envs:AgentPEFT/DBBench-v0")

Where gymnasium is not installed, as on a machine that only learns, there are no environments, but
all the names that need none: errors, outcomes, rewards, tasks.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from agentpeft.envs.core.errors import DataError, EnvFault, SettingsError, UnknownTaskError
from agentpeft.envs.core.rewards import REWARD_PRESETS, Episode, Outcome, RewardConfig, TurnRecord
from agentpeft.envs.tasks.task import Task, TaskSource

_HAS_GYMNASIUM = find_spec("gymnasium") is not None
if _HAS_GYMNASIUM:
    import gymnasium

    from agentpeft.envs.core.spaces import Unicode
    from agentpeft.envs.core.text_env import EpisodeConfig, EpisodeOptions, TextEnv, Turn

if TYPE_CHECKING:
    from agentpeft.envs.core.checking import EnvContractError, check_text_env
    from agentpeft.envs.core.vector import TextVectorEnv
    from agentpeft.envs.tasks.streams import Stage, TaskStream
    from agentpeft.envs.tasks.taskset import Taskset

__all__ = [
    "ENV_IDS",
    "REWARD_PRESETS",
    "DataError",
    "EnvContractError",
    "EnvFault",
    "Episode",
    "EpisodeConfig",
    "EpisodeOptions",
    "Outcome",
    "RewardConfig",
    "SettingsError",
    "Stage",
    "Task",
    "TaskSource",
    "TaskStream",
    "Taskset",
    "TextEnv",
    "TextVectorEnv",
    "Turn",
    "TurnRecord",
    "Unicode",
    "UnknownTaskError",
    "check_text_env",
]

_LATE = {
    "EnvContractError": "core.checking",
    "Stage": "tasks.streams",
    "TaskStream": "tasks.streams",
    "Taskset": "tasks.taskset",
    "TextVectorEnv": "core.vector",
    "check_text_env": "core.checking",
}
"""Modules of names that playing an episode does without: they are imported at the first use."""

ENV_IDS = (
    "AgentPEFT/Arithmetic-v0",
    "AgentPEFT/GSM8K-v0",
    "AgentPEFT/DBBench-v0",
    "AgentPEFT/OSInteraction-v0",
)
"""The ids of the environments that have tasks of their own."""
if _HAS_GYMNASIUM:
    _SUITE, _CLIENT = "agentpeft.envs", "agentpeft.apps.serve.client.env"
    for _env_id, _entry_point, _make_vec in (
        (ENV_IDS[0], f"{_SUITE}.arithmetic.env:ArithmeticEnv", "make_arithmetic"),
        (ENV_IDS[1], f"{_SUITE}.gsm8k.env:GSM8KEnv", "make_gsm8k"),
        (ENV_IDS[2], f"{_SUITE}.db_bench.env:DBBenchEnv", "make_db_bench"),
        (ENV_IDS[3], f"{_SUITE}.os_interaction.env:OSInteractionEnv", "make_os_interaction"),
        ("AgentPEFT/Mixture-v0", f"{_SUITE}.mixture:MixtureEnv", "make_mixture"),
    ):
        gymnasium.register(
            id=_env_id,
            entry_point=_entry_point,
            vector_entry_point=f"{_SUITE}.core.vector:{_make_vec}",
        )
    gymnasium.register(  # an app, imported where somebody plays on a server
        id="AgentPEFT/Remote-v0",
        entry_point=f"{_CLIENT}:RemoteEnv",
        vector_entry_point=f"{_CLIENT}:make_remote",
    )


def __getattr__(name: str) -> Any:
    """Returns a name of `_LATE`."""
    if name not in _LATE or (_LATE[name].startswith("core.") and not _HAS_GYMNASIUM):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
