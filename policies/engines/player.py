"""`Player`: what plays the episodes of an env runner, an engine and the chat format it reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.rollout.chat import ChatFormat, make_chat
from agentpeft.policies.settings.config import Settings

EngineFactory = Callable[[Settings, PolicyBase, ChatFormat], Engine]


@dataclass(frozen=True)
class Player:
    """What plays: how it reads and writes, and what answers.

    `oracle` is told, by session, how a perfect agent acts, if the settings' engine is "scripted".
    """

    chat: ChatFormat
    engine: Engine
    oracle: dict[str, Sequence[str]] = field(default_factory=dict)


def make_player(
    settings: Settings,
    base: PolicyBase | None = None,
    make_engine: EngineFactory | None = None,
) -> Player:
    """Returns the settings' player. Raises: SettingsError.

    `base` None is the settings' model; `make_engine` None is the settings' engine.
    """
    limits = settings.env_runners
    if base is None and make_engine is None and limits.engine == "vllm":
        from agentpeft.policies.engines.vllm.start import start_shared, start_vllm

        start = start_vllm if limits.shared_engines is None else start_shared
        return Player(*start(settings))
    if base is None:
        from agentpeft.policies.models.load import load_served_base

        base = load_served_base(settings, limits.num_gpus_per_env_runner)
    chat = make_chat(base, settings)
    if make_engine is not None:
        return Player(chat, make_engine(settings, base, chat))
    if limits.engine == "scripted":
        from agentpeft.policies.engines.scripted import ScriptedEngine

        oracle: dict[str, Sequence[str]] = {}
        return Player(chat, ScriptedEngine(chat, oracle, limits.max_context_tokens), oracle)
    from agentpeft.policies.engines.transformers.engine import start_transformers

    return Player(chat, start_transformers(settings, base, chat))
