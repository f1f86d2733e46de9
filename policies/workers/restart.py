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
    WorkerMemoryError,
)
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actors, Place

logger = logging.getLogger(__name__)


class RunnerRestarts:
    """Replaces runners that fail, and lets them leave and join with their machines.

    A runner that was short of memory twice plays fewer episodes at once from then on. `counts`:
    restarts, drained and joined runners. `most_given`: the most episodes any has had at once.
    """

    def __init__(self, actors: Actors, settings: Settings, counts: Counter[str]) -> None:
        self._actors, self._settings, self._counts = actors, settings, counts
        self._num_out_of_memory: Counter[int] = Counter()

    def get_limit(self, runner: int, most_given: int) -> int:
        """Returns how many episodes a runner plays at once, after its last lack of memory.

        The first lack does not count: it may have been another process that took the memory.
        """
        most = self._settings.env_runners.max_concurrent_episodes
        halvings = self._num_out_of_memory[runner] - 1
        return most if halvings < 1 else max(min(most, most_given) >> halvings, 1)

    def count_failure(self, runner: int, reason: Exception) -> None:
        """Counts a restart. Raises: TrainingError or DeliveryError where none is left."""
        limit = self._settings.fault_tolerance.max_num_restarts
        if self._counts["num_env_runner_restarts"] >= limit:
            kind = DeliveryError if isinstance(reason, DeliveryError) else TrainingError
            name = "fault_tolerance.max_num_restarts"
            raise kind(f"env runner {runner}: {reason} ({name} {limit} is reached)") from reason
        self._counts["num_env_runner_restarts"] += 1
        self._num_out_of_memory[runner] += isinstance(reason, WorkerMemoryError)
        logger.warning("env runner %d is begun anew: %s", runner, reason)

    def restart(self, runner: int, most_given: int, others: Sequence[int]) -> bool:
        """Replaces a runner; returns False if there is no room for it, and the `others` go on.

        Raises: PlacementError if there are no others; as `count_failure` if new ones keep failing;
        TrainingError where what the settings name is no longer there.
        """
        while True:
            try:
                self._actors.restart(runner, self._limit_settings(runner, most_given))
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

    def join(self, runner: int, most_given: int) -> bool:
        """Restarts a runner that has a machine again; returns whether it has started."""
        try:
            self._actors.restart(runner, self._limit_settings(runner, most_given))
        except (PlacementError, WorkerLostError) as error:
            logger.warning("env runner %d has a place again, and does not start: %s", runner, error)
            return False
        self._counts["num_joined_env_runners"] += 1
        logger.warning("env runner %d has a place again, and plays with the others", runner)
        return True

    def _limit_settings(self, runner: int, most_given: int) -> Settings:
        """Returns the settings, with fewer episodes at once for one that was short of memory."""
        runners, most = self._settings.env_runners, self.get_limit(runner, most_given)
        if most == runners.max_concurrent_episodes:
            return self._settings
        logger.warning("env runner %d plays at most %d episodes at once from now on", runner, most)
        fewer = runners.model_copy(update={"max_concurrent_episodes": most})
        return self._settings.model_copy(update={"env_runners": fewer})
