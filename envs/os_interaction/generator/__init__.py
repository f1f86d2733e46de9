"""Unlimited OS tasks for any set of skills."""

from agentpeft.envs.os_interaction.generator.generator import OSGenerator

__all__ = ["OSGenerator"]
