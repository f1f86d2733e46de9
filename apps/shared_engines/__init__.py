"""Engines that several runs share: one base, and the adapters of all.

A run names them by `env_runners.shared_engines=agentpeft.apps.shared_engines:NAME`, and its env
runners call `start_shared`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they import torch, which the command's help does without
    from agentpeft.policies.engines.protocol import Engine
    from agentpeft.policies.rollout.chat import ChatFormat
    from agentpeft.policies.settings.config import Settings


def start_shared(settings: "Settings", name: str) -> "tuple[ChatFormat, Engine]":
    """Returns how the settings' model reads and writes, and an engine of the group `name`.

    Raises: SettingsError where there is no such engine, or the run does not fit it; PlacementError
    where all slots are taken, EngineError where no engine answers.
    """
    from agentpeft.apps.shared_engines.group import join_group

    return join_group(settings, name)
