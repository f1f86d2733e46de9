"""Env runners that fail are restarted, and leave and join with their machines."""

import logging
from collections import Counter
from collections.abc import Sequence

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import (
    DeliveryError,
    PlacementError,
    TrainingError,
    WorkerLostError,
)
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actors, Place

logger = logging.getLogger(__name__)


class RunnerRestarts:
    """Replaces runners that fail, and lets them leave and join with their machines.

    `counts`: restarts, drained and joined runners.
    """

    def __init__(self, actors: Actors, settings: Settings, counts: Counter[str]) -> None:
        self._actors, self._settings, self._counts = actors, settings, counts

    def count_failure(self, runner: int, reason: Exception) -> None:
        """Counts a restart. Raises: TrainingError or DeliveryError where none is left."""
        limit = self._settings.fault_tolerance.max_num_restarts
        if self._counts["num_env_runner_restarts"] >= limit:
            kind = DeliveryError if isinstance(reason, DeliveryError) else TrainingError
            name = "fault_tolerance.max_num_restarts"
            raise kind(f"env runner {runner}: {reason} ({name} {limit} is reached)") from reason
        self._counts["num_env_runner_restarts"] += 1
        logger.warning("env runner %d is begun anew: %s", runner, reason)

    def restart(self, runner: int, others: Sequence[int]) -> bool:
        """Replaces a runner; returns False if there is no room for it, and the `others` go on.

        Raises: PlacementError if there are no others; as `count_failure` if new ones keep failing;
        TrainingError where what the settings name is no longer there.
        """
        while True:
            try:
                self._actors.restart(runner, self._settings)
            except WorkerLostError as error:
                self.count_failure(runner, error)
            except SettingsError as error:
                raise TrainingError(f"env runner {runner} cannot begin anew: {error}") from error
            except PlacementError as error:
                if not others:
                    raise
                left = f"{len(others)} of {self._actors.num_actors}"
                logger.warning("the run goes on with %s env runners: %s", left, error)
                return False
            else:
                return True

    def leave_drained(self, serving: Sequence[int], places: Sequence[Place]) -> Sequence[int]:
        """Returns the runners whose machines are not drained, or all if all are."""
        staying = [runner for runner in serving if places[runner] != "drained"]
        for runner in serving if staying else ():
            if places[runner] == "drained":
                self._counts["num_drained_env_runners"] += 1
                logger.warning("env runner %d gets no more work: its node is drained", runner)
        return staying or serving

    def join(self, runner: int) -> bool:
        """Restarts a runner that has a machine again; returns whether it has started."""
        try:
            self._actors.restart(runner, self._settings)
        except (PlacementError, WorkerLostError) as error:
            logger.warning("env runner %d has a place again, and does not start: %s", runner, error)
            return False
        self._counts["num_joined_env_runners"] += 1
        logger.warning("env runner %d has a place again, and plays with the others", runner)
        return True
