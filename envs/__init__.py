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
from agentpeft.envs.core.outcomes import Outcome
from agentpeft.envs.core.rewards import REWARD_PRESETS, Episode, RewardConfig, TurnRecord
from agentpeft.envs.tasks.taskset import Task, Taskset, TaskSource

_HAS_GYMNASIUM = find_spec("gymnasium") is not None
if _HAS_GYMNASIUM:
    import gymnasium

    from agentpeft.envs.core.spaces import Unicode
    from agentpeft.envs.core.text_env import EpisodeConfig, EpisodeOptions, TextEnv, Turn

if TYPE_CHECKING:
    from agentpeft.envs.core.checking import check_text_env
    from agentpeft.envs.core.vector import TextVectorEnv
    from agentpeft.envs.tasks.streams import Stage, TaskStream

__all__ = [
    "ENV_IDS",
    "REWARD_PRESETS",
    "DataError",
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
    "Stage": "tasks.streams",
    "TaskStream": "tasks.streams",
    "TextVectorEnv": "core.vector",
    "check_text_env": "core.checking",
}
"""Modules of names that playing an episode does without: they are imported at the first use."""

_ENTRY_POINTS = {
    "AgentPEFT/Arithmetic-v0": ("arithmetic.env:ArithmeticEnv", "core.vector:make_arithmetic"),
    "AgentPEFT/GSM8K-v0": ("gsm8k.env:GSM8KEnv", "core.vector:make_gsm8k"),
    "AgentPEFT/DBBench-v0": ("db_bench.env:DBBenchEnv", "core.vector:make_db_bench"),
    "AgentPEFT/OSInteraction-v0": (
        "os_interaction.env:OSInteractionEnv",
        "core.vector:make_os_interaction",
    ),
}
ENV_IDS = tuple(_ENTRY_POINTS)
"""The ids of the environments that have tasks of their own."""
_ENTRY_POINTS["AgentPEFT/Remote-v0"] = ("remote.env:RemoteEnv", "remote.env:make_remote")
_ENTRY_POINTS["AgentPEFT/Mixture-v0"] = ("mixture:MixtureEnv", "core.vector:make_mixture")
if _HAS_GYMNASIUM:
    for _env_id, (_entry_point, _make_vec) in _ENTRY_POINTS.items():
        gymnasium.register(
            id=_env_id,
            entry_point=f"agentpeft.envs.{_entry_point}",
            vector_entry_point=f"agentpeft.envs.{_make_vec}",
        )


def __getattr__(name: str) -> Any:
    """Returns a name of `_LATE`."""
    if name not in _LATE or (_LATE[name].startswith("core.") and not _HAS_GYMNASIUM):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
