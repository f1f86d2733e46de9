"""Engines that leave their memory to the learners while these learn."""

from typing import Protocol, runtime_checkable

from agentpeft.policies.engines.protocol import Engine


@runtime_checkable
class SleepingEngine(Engine, Protocol):
    """An engine that can leave its memory to others for a while."""

    def sleep(self) -> None:
        """Gives the memory back that it can do without until it is asked for something again.

        Keys and values are forgotten; a GPU's weights are kept in the machine's memory meanwhile.
        Then it wakes by itself, whatever it is asked. Raises: EngineError where requests are under
        way.
        """
        ...
