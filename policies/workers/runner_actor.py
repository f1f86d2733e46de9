"""`EnvRunnerActor`: an env runner as an actor, which the driver calls by name."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentpeft.policies.delivery.deliver import DeliveryAnswer, serve
from agentpeft.policies.messages import Ids, Ref
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import resolve
from agentpeft.policies.workers.start_actors import StartedActor


class EnvRunnerActor(StartedActor):
    """One env runner."""

    def make(self, settings: Settings) -> None:
        """Makes the environments and starts the engine."""
        self._runner = self.make_runner(settings)

    def make_runner(self, settings: Settings) -> EnvRunner:
        """Returns the runner; a subclass may give it an engine of its own."""
        return EnvRunner(settings)

    def deliver(self, adapter: Sequence[Ref], sequences: Sequence[Ids] | None) -> DeliveryAnswer:
        """Serves an adapter from the next turn on, and answers what arrived and is served.

        `adapter` is one reference, in a list. Raises: DeliveryError, EngineError.
        """
        (arrived,) = resolve(adapter)
        return serve(self._runner, arrived, sequences)

    def take(self, requests: Sequence[GroupRequest]) -> None:
        """Starts to play groups; `collect` returns them, and raises what goes wrong."""
        self._runner.take(requests)

    def wake(self) -> None:
        """Has the `collect` under way return at once."""
        self._runner.wake()

    def collect(self, max_groups: int, until_room: bool) -> list[Any]:
        """Waits for groups that are finished; see `EnvRunner.collect`.

        Returns the count of ended episodes and the groups without episodes, then the episodes of
        each: `max_groups`, the last ones None where fewer are finished. So each is an object of its
        own for Ray, and the driver fetches the reports alone. Raises: EngineError, and what a
        broken environment raises.
        """
        num_ended, played = self._runner.collect(max_groups, until_room)
        alone = [replace(group, group=None) for group in played]
        rest = [None] * (max_groups - len(played))
        return [(num_ended, alone), *(group.group for group in played), *rest]

    def sleep(self) -> None:
        """Puts the engine to sleep, freeing GPU memory, until it is needed. Raises: EngineError."""
        self._runner.sleep()

    def close(self) -> None:
        """Closes engine and environments; idempotent."""
        self._runner.close()
