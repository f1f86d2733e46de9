"""Env runners that fail are restarted, and leave and join with their machines."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import (
    DeliveryError,
    EngineError,
    EngineLostError,
    PayloadLostError,
    PlacementError,
    TrainingError,
    WorkerLostError,
)
from agentpeft.policies.workers.actors import Place

if TYPE_CHECKING:  # it imports this module where a runner fails, or a machine comes or goes
    from agentpeft.policies.workers.runner_group import EnvRunnerGroup

logger = logging.getLogger(__name__)


class RunnerRestarts:
    """Replaces a group's runners that fail, and lets them leave and join with their machines.

    A new runner gets the present adapter. The run ends if engines fail twice over the same group,
    if the new runner fails its delivery, or after `fault_tolerance.max_num_restarts`.
    """

    def __init__(self, group: "EnvRunnerGroup") -> None:
        self._group = group

    def lose(self, runner: int, reason: Exception) -> None:
        """Replaces a runner that has failed, and has its groups played again.

        One engine failure is forgiven; deaths of processes and of shared engines have no limit but
        the run's, of restarts. Raises: `reason` where engines fail again over a group.
        """
        group = self._group
        lost = list(group.jobs[runner].requests)
        if isinstance(reason, PayloadLostError):
            group.counts["num_redrawn_groups"] += len(lost)
        if isinstance(reason, EngineError) and not isinstance(reason, EngineLostError):
            if any(group.num_engine_failures[request] for request in lost):
                raise reason
            group.num_engine_failures.update(lost)
        if runner in group.serving:
            self.replace(runner, reason)
        else:
            self._return_groups(runner)

    def replace(self, runner: int, reason: Exception) -> None:
        """Replaces a runner, delivers the present adapter to it, and keeps what proves it.

        Raises: TrainingError or DeliveryError if none may be replaced any more, DeliveryError if
        the new one fails too, PlacementError if there is no room and no other runner.
        """
        group = self._group
        self._count_failure(runner, reason)
        others = [other for other in group.serving if other != runner]
        is_started = self._restart(runner, others)
        if not is_started:
            group.serving = others
        self._return_groups(runner)
        group.proofs[runner] = {}
        if is_started and group.shipment is not None:
            try:
                returned = group.send_to(runner, group.shipment)
                group.proofs[runner] = group.check_answer(returned, group.shipment)
            except PayloadLostError:
                raise
            except (DeliveryError, EngineError, WorkerLostError) as error:
                raise DeliveryError(f"env runner {runner}, begun anew: {error}") from error

    def follow_machines(self, places: Sequence[Place]) -> None:
        """Gives no more work to runners whose machine is drained, and work to those that have one.

        What a runner has been given before it still plays, as long as its machine is there. Where
        all machines are drained, all runners go on.
        """
        group = self._group
        staying = [runner for runner in group.serving if places[runner] != "drained"]
        for runner in group.serving if staying else ():
            if places[runner] == "drained":
                group.counts["num_drained_env_runners"] += 1
                logger.warning("env runner %d gets no more work: its node is drained", runner)
        group.serving = staying or group.serving
        for runner, place in enumerate(places):
            if place == "stays" and runner not in group.serving:
                self._return_groups(runner)
                self._join(runner)

    def _return_groups(self, runner: int) -> None:
        self._group.queue.return_groups(self._group.jobs[runner].clear())

    def _count_failure(self, runner: int, reason: Exception) -> None:
        """Counts a restart. Raises: TrainingError or DeliveryError where none is left."""
        limit, counts = self._group.settings.fault_tolerance.max_num_restarts, self._group.counts
        if counts["num_env_runner_restarts"] >= limit:
            kind = DeliveryError if isinstance(reason, DeliveryError) else TrainingError
            name = "fault_tolerance.max_num_restarts"
            raise kind(f"env runner {runner}: {reason} ({name} {limit} is reached)") from reason
        counts["num_env_runner_restarts"] += 1
        logger.warning("env runner %d is begun anew: %s", runner, reason)

    def _restart(self, runner: int, others: Sequence[int]) -> bool:
        """Replaces a runner; returns False if there is no room for it, and the `others` go on.

        Raises: PlacementError if there are no others; as `_count_failure` if new ones keep failing;
        TrainingError where what the settings name is no longer there.
        """
        group = self._group
        while True:
            try:
                group.actors.restart(runner, group.settings)
            except WorkerLostError as error:
                self._count_failure(runner, error)
            except SettingsError as error:
                raise TrainingError(f"env runner {runner} cannot begin anew: {error}") from error
            except PlacementError as error:
                if not others:
                    raise
                left = f"{len(others)} of {group.num_runners}"
                logger.warning("the run goes on with %s env runners: %s", left, error)
                return False
            else:
                return True

    def _join(self, runner: int) -> None:
        """Restarts a runner that has a machine again, and gives it work if it starts."""
        group = self._group
        try:
            group.actors.restart(runner, group.settings)
        except (PlacementError, WorkerLostError) as error:
            logger.warning("env runner %d has a place again, and does not start: %s", runner, error)
            return
        group.counts["num_joined_env_runners"] += 1
        logger.warning("env runner %d has a place again, and plays with the others", runner)
        group.serving = sorted([*group.serving, runner])
