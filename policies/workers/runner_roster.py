"""Which env runners play: those that fail are begun anew, those without a machine are left out."""

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
from agentpeft.policies.workers.actors import Actors

logger = logging.getLogger(__name__)


class RunnerRoster:
    """Which runners are given work, and how many episodes each may play at once.

    `serving`: the runners that are given work, in order. `counts`: restarts, drained and joined
    runners. `most_episodes`: the most that any has been given at once.
    """

    def __init__(self, actors: Actors, settings: Settings, counts: Counter[str]) -> None:
        self._actors, self._settings, self._counts = actors, settings, counts
        self.serving: Sequence[int] = list(range(actors.num_actors))
        self.most_episodes = 0
        self._generations = [0] * actors.num_actors
        self._num_out_of_memory: Counter[int] = Counter()

    def get_generation(self, runner: int) -> int:
        """Returns a number that grows when the runner is begun anew or its machine is drained."""
        return self._generations[runner]

    def get_limit(self, runner: int) -> int:
        """Returns how many episodes a runner plays at once, after its last lack of memory.

        The first lack does not count: it may have been another process that took the memory.
        """
        most = self._settings.env_runners.max_concurrent_episodes
        halvings = self._num_out_of_memory[runner] - 1
        return most if halvings < 1 else max(min(most, self.most_episodes) >> halvings, 1)

    def count_failure(self, runner: int, reason: Exception) -> None:
        """Counts a restart. Raises: TrainingError or DeliveryError where none is left."""
        limit = self._settings.fault_tolerance.max_num_restarts
        if self._counts["num_env_runner_restarts"] >= limit:
            kind = DeliveryError if isinstance(reason, DeliveryError) else TrainingError
            name = "fault_tolerance.max_num_restarts"
            raise kind(f"env runner {runner}: {reason} ({name} {limit} is reached)") from reason
        self._counts["num_env_runner_restarts"] += 1
        self._generations[runner] += 1
        self._num_out_of_memory[runner] += isinstance(reason, WorkerMemoryError)
        logger.warning("env runner %d is begun anew: %s", runner, reason)

    def restart(self, runner: int) -> bool:
        """Replaces a runner; returns False if there is no room for it, and the others go on.

        Raises: PlacementError if there are no others; as `count_failure` if new ones keep failing;
        TrainingError where what the settings name is no longer there.
        """
        while True:
            try:
                self._actors.restart(runner, self._settings_of(runner))
            except WorkerLostError as error:
                self.count_failure(runner, error)
            except SettingsError as error:
                raise TrainingError(f"env runner {runner} cannot begin anew: {error}") from error
            except PlacementError as error:
                if self.serving == [runner]:
                    raise
                self.serving = [other for other in self.serving if other != runner]
                left = f"{len(self.serving)} of {self._actors.num_actors}"
                logger.warning("the run goes on with %s env runners: %s", left, error)
                return False
            else:
                return True

    def follow_machines(self) -> list[int]:
        """Gives no more work to runners on machines that are drained.

        What such a runner has been given it still plays, as long as its machine is there. Returns
        the runners without work that have a machine again, for `join`.
        """
        places = self._actors.find_places()
        staying = [runner for runner in self.serving if places[runner] != "drained"]
        for runner in self.serving if staying else ():
            if places[runner] == "drained":
                self._generations[runner] += 1
                self._counts["num_drained_env_runners"] += 1
                logger.warning("env runner %d gets no more work: its node is drained", runner)
        self.serving = staying or self.serving
        idle = set(range(self._actors.num_actors)).difference(self.serving)
        return [runner for runner in sorted(idle) if places[runner] == "stays"]

    def join(self, runner: int) -> None:
        """Begins a runner anew that has a machine again; the run goes on if it does not start."""
        try:
            self._actors.restart(runner, self._settings_of(runner))
        except (PlacementError, WorkerLostError) as error:
            logger.warning("env runner %d has a place again, and does not start: %s", runner, error)
            return
        self._generations[runner] += 1
        self.serving = sorted([*self.serving, runner])
        self._counts["num_joined_env_runners"] += 1
        logger.warning("env runner %d has a place again, and plays with the others", runner)

    def _settings_of(self, runner: int) -> Settings:
        """Returns the settings, with fewer episodes at once for one that was short of memory."""
        own, most = self._settings.env_runners, self.get_limit(runner)
        if most == own.max_concurrent_episodes:
            return self._settings
        logger.warning("env runner %d plays at most %d episodes at once from now on", runner, most)
        fewer = own.model_copy(update={"max_concurrent_episodes": most})
        return self._settings.model_copy(update={"env_runners": fewer})
