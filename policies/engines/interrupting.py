"""Engines whose turns can be interrupted, to go on with another adapter."""

from typing import Protocol, runtime_checkable

from agentpeft.policies.engines.protocol import Engine


@runtime_checkable
class InterruptibleEngine(Engine, Protocol):
    """An engine that can end what is under way early."""

    def interrupt(self) -> None:
        """Has all requests under way answered soon, with the tokens that they have by then.

        There may be none; their `stop_reason` is INTERRUPTED. Those that end by themselves
        meanwhile are answered as ever. It does not wait for that.
        """
        ...
