"""The env runners: what one does in its process, and the group that replaces those that fail."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentpeft.policies.delivery.publish import DeliveryAnswer, Shipment, check, unpack, worst_of
from agentpeft.policies.errors import (
    DeliveryError,
    EngineError,
    PayloadLostError,
    PlacementError,
    TrainingError,
    WorkerLostError,
    WorkerMemoryError,
)
from agentpeft.policies.messages import Ids, Ref
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actor, ActorSpec, missing
from agentpeft.policies.workers.pending_samples import PendingSamples
from agentpeft.policies.workers.ray_actors import resolve
from agentpeft.policies.workers.work_queue import Desk, Job, Played, Receiver, WorkQueue

logger = logging.getLogger(__name__)
_LONGEST_WAIT_S = 5.0
_MAX_GROUPS_TOLD = 16
"""How many groups a runner tells of at once."""


class EnvRunnerActor(Actor):
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
        return unpack(self._runner, arrived, sequences)

    def take(self, requests: Sequence[GroupRequest]) -> None:
        """Begins to play groups; `collect` returns them, and raises what goes wrong."""
        self._runner.take(requests)

    def collect(self, max_groups: int, has_more: bool) -> list[Any]:
        """Waits for groups that are finished; see `EnvRunner.collect`.

        Returns the news without the groups, then these: `max_groups`, the last ones None where
        fewer are finished. Raises: EngineError, and what a broken environment raises.
        """
        got = self._runner.collect(max_groups, has_more)
        rest = [None] * (max_groups - len(got.groups))
        return [replace(got, groups=[]), *got.groups, *rest]

    def close(self) -> None:
        """Closes engine and environments; idempotent."""
        self._runner.close()


class EnvRunnerGroup:
    """The env runners. Each takes the next groups from one queue when it has room for them.

    A runner that dies, whose engine fails, or that cannot prove what it serves is replaced and
    given the present adapter; the groups that it had go back to the head of the queue. The run ends
    if engines fail twice over the same group, if the new runner fails its delivery, or at the limit
    of restarts. If there is no room for a new runner, as its node is gone, the others go on.
    Samples follow from seed and position, so they are what they would have been, whoever plays them
    (with `max_adapter_lag` 0, and unless an episode is too slow).

    All is done in the caller's thread: `play` waits for news of the runners and hands groups out.
    Whoever waits for something else meanwhile calls it again and again.
    """

    def __init__(
        self,
        settings: Settings,
        counts: Counter[str] | None = None,
        kind: type[EnvRunnerActor] = EnvRunnerActor,
    ) -> None:
        """`counts` is added to. Raises: PlacementError, and what a runner's constructor raises."""
        own = settings.env_runners
        self._settings = settings
        spec = ActorSpec(
            name="the env runners",
            kind=kind,
            num_actors=own.num_env_runners,
            num_cpus=own.num_cpus_per_env_runner,
            num_gpus=own.num_gpus_per_env_runner,
            num_threads=own.num_threads,
            is_closed=True,
            strategy=own.placement_strategy,
        )
        self._actors = kind.start_all(spec, settings)
        self.num_runners = self._actors.num_actors
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._serving = list(range(self.num_runners))
        self._generations = [0] * self.num_runners
        self._max_episodes = own.max_concurrent_episodes
        self._queue = WorkQueue(self.num_runners, self._max_episodes, settings.deterministic)
        self._desks = [Desk(self._max_episodes) for _ in self._serving]
        self._num_out_of_memory: Counter[int] = Counter()
        self._num_episodes = 0
        self._shipment: Shipment | None = None

    def sample(self, requests: Sequence[GroupRequest]) -> PendingSamples:
        """Begins to play groups, before all others that wait."""
        samples = PendingSamples(self)
        samples.ask(requests, is_first=True)
        return samples

    def ask(
        self, receiver: Receiver, requests: Sequence[GroupRequest], *, is_first: bool = False
    ) -> None:
        """Adds groups to the queue, and hands out those that a runner has room for."""
        self._queue.add([Job(request, receiver) for request in requests], is_first=is_first)
        self._hand_out()

    def play(self, until: Sequence[Ref] = ()) -> None:
        """Waits for news of a runner, or for one of `until`, and hands groups out.

        With `until` it does not wait for long. Raises: TrainingError, DeliveryError,
        PlacementError, and what playing raises.
        """
        self._hand_out()
        busy = [runner for runner, desk in enumerate(self._desks) if desk.jobs]
        for runner in busy:
            self._ask_for_news(runner)
        news = [self._desks[runner].news[0] for runner in busy]
        ready = self._actors.wait([*news, *until], timeout_s=_LONGEST_WAIT_S if until else None)
        for place in ready:
            if place < len(busy):
                self._receive(busy[place])
        self._hand_out()

    def give_up(self) -> None:
        """Forgets the groups that wait, and lets those in play come to their end."""
        self._queue.clear()
        while any(desk.jobs for desk in self._desks):
            self.play()

    def load_adapter(self, shipment: Shipment) -> dict[str, float]:
        """Delivers an adapter to all runners; returns the proof's metrics, of the worst runner.

        Raises: DeliveryError if a runner fails twice, TrainingError if none may be replaced.
        """
        self._shipment = shipment
        self._follow_machines()
        asked = {runner: self._deliver(runner, shipment) for runner in self._serving}
        generations = list(self._generations)
        if any(desk.jobs for desk in self._desks):
            while waiting := missing(self._actors, list(asked.values())):
                self.play(waiting)
        checked = []
        for runner, answer in asked.items():
            if generations[runner] != self._generations[runner]:
                continue  # replaced while it played, and given the adapter then
            try:
                checked.append(self._check(answer, shipment))
            except PayloadLostError:  # the learner's adapter, with the learner
                raise
            except (DeliveryError, EngineError, WorkerLostError) as error:
                self.counts["num_failed_deliveries"] += 1
                checked.append(self._replace(runner, error))
        return worst_of(checked)

    def close(self) -> None:
        """Ends the runners; idempotent."""
        self._actors.close()

    def _hand_out(self) -> None:
        """Gives groups to the runners that have room, and asks for the room of the others."""
        serving = {runner: self._desks[runner] for runner in self._serving}
        for runner, jobs in self._queue.hand_out(serving).items():
            under_way = sum(job.request.num_episodes for job in serving[runner].jobs.values())
            self._num_episodes = max(self._num_episodes, under_way)
            self._actors.call(runner, EnvRunnerActor.take, [job.request for job in jobs])
        for runner in self._serving if self._queue.is_waiting_for_room else ():
            desk = self._desks[runner]
            if desk.news and not desk.is_asked_for_room:
                desk.is_asked_for_room = True
                self._actors.call(runner, EnvRunnerActor.take, ())

    def _ask_for_news(self, runner: int) -> None:
        """Has a runner tell of the next groups that it finishes, unless it is asked already."""
        desk = self._desks[runner]
        if desk.news:
            return
        num_groups = min(len(desk.jobs), _MAX_GROUPS_TOLD)
        desk.is_asked_for_room = self._queue.is_waiting_for_room and runner in self._serving
        desk.news = self._actors.call(
            runner,
            EnvRunnerActor.collect,
            num_groups,
            desk.is_asked_for_room,
            num_returns=1 + num_groups,
            is_beside=True,
        )

    def _receive(self, runner: int) -> None:
        """Takes a runner's news, and replaces it if it has failed."""
        desk = self._desks[runner]
        (first, *groups), desk.news = desk.news, ()
        try:
            (got,) = self._actors.fetch([first])
        except (EngineError, WorkerLostError, PayloadLostError) as error:
            self._lose(runner, error)
            return
        for request, report, group in zip(got.requests, got.reports, groups, strict=False):
            job = desk.jobs.pop((request.mode, request.group_id))
            is_given_up = not report.adapter_versions
            job.receiver.receive(Played(request, runner, None if is_given_up else group, report))
        desk.num_ended = got.num_ended

    def _lose(self, runner: int, reason: Exception) -> None:
        """Replaces a runner that has failed, and has what it had played again.

        One engine failure is forgiven; the deaths of processes have no limit but the run's own, of
        restarts. Raises: `reason` where engines fail again over a group.
        """
        jobs = list(self._desks[runner].jobs.values())
        is_engine = isinstance(reason, EngineError)
        if isinstance(reason, PayloadLostError):
            self.counts["num_redrawn_groups"] += len(jobs)
        if is_engine and any(job.num_failures for job in jobs):
            raise reason
        for job in jobs:
            job.num_failures += is_engine
        if runner in self._serving:
            self._replace(runner, reason)
        else:
            self._take_back(runner)

    def _take_back(self, runner: int) -> None:
        """Puts what a runner had at the head of the queue; it begins with nothing."""
        desk, self._desks[runner] = self._desks[runner], Desk(self._max_episodes_of(runner))
        self._queue.put_back(list(desk.jobs.values()))

    def _follow_machines(self) -> None:
        """Asks nothing more of runners on machines that are drained; begins those that have one.

        What a runner has been asked for it still plays, as long as its machine is there.
        """
        places = self._actors.find_places()
        staying = [runner for runner in self._serving if places[runner] != "drained"]
        for runner in self._serving if staying else ():
            if places[runner] == "drained":
                self._generations[runner] += 1
                self.counts["num_drained_env_runners"] += 1
                logger.warning("env runner %d gets no more work: its node is drained", runner)
        self._serving = staying or self._serving
        for runner in set(range(self.num_runners)).difference(self._serving):
            if places[runner] == "stays":
                self._join(runner)

    def _join(self, runner: int) -> None:
        """Begins a runner anew that has a place again; the run goes on if it does not start."""
        self._take_back(runner)
        try:
            self._actors.restart(runner, self._settings_of(runner))
        except (PlacementError, WorkerLostError) as error:
            logger.warning("env runner %d has a place again, and does not start: %s", runner, error)
            return
        self._generations[runner] += 1
        self._serving = sorted([*self._serving, runner])
        self.counts["num_joined_env_runners"] += 1
        logger.warning("env runner %d has a place again, and plays with the others", runner)

    def _deliver(self, runner: int, shipment: Shipment) -> Ref:
        adapter, sequences = [shipment.adapter], shipment.sequences
        return self._actors.call(runner, EnvRunnerActor.deliver, adapter, sequences)

    def _check(self, returned: Ref, shipment: Shipment) -> dict[str, float]:
        (answer,) = self._actors.fetch([returned])
        return check(answer, shipment)

    def _replace(self, runner: int, reason: Exception) -> dict[str, float]:
        """Replaces a runner, delivers the present adapter to it, and returns the proof's metrics.

        Raises: TrainingError or DeliveryError if none may be replaced any more, DeliveryError if
        the new one fails too, PlacementError if there is no room and no other runner.
        """
        self._count_restart(runner, reason)
        self._num_out_of_memory[runner] += isinstance(reason, WorkerMemoryError)
        self._take_back(runner)
        try:
            self._actors.restart(runner, self._settings_of(runner))
        except WorkerLostError as error:
            return self._replace(runner, error)
        except PlacementError as error:
            self._go_on_without(runner, error)
            return {}
        if self._shipment is None:
            return {}
        try:
            return self._check(self._deliver(runner, self._shipment), self._shipment)
        except PayloadLostError:
            raise
        except (DeliveryError, EngineError, WorkerLostError) as error:
            raise DeliveryError(f"env runner {runner}, begun anew: {error}") from error

    def _count_restart(self, runner: int, reason: Exception) -> None:
        limit = self._settings.fault_tolerance.max_num_env_runner_restarts
        if self.counts["num_env_runner_restarts"] >= limit:
            kind = DeliveryError if isinstance(reason, DeliveryError) else TrainingError
            name = "fault_tolerance.max_num_env_runner_restarts"
            raise kind(f"env runner {runner}: {reason} ({name} {limit} is reached)") from reason
        self.counts["num_env_runner_restarts"] += 1
        self._generations[runner] += 1
        logger.warning("env runner %d is begun anew: %s", runner, reason)

    def _settings_of(self, runner: int) -> Settings:
        """Returns the settings, with half the concurrent episodes each time that memory was short.

        The first time does not count: it may have been another process that took the memory.
        """
        own, most = self._settings.env_runners, self._max_episodes_of(runner)
        if most == own.max_concurrent_episodes:
            return self._settings
        logger.warning("env runner %d plays at most %d episodes at once from now on", runner, most)
        fewer = own.model_copy(update={"max_concurrent_episodes": most})
        return self._settings.model_copy(update={"env_runners": fewer})

    def _max_episodes_of(self, runner: int) -> int:
        """Returns how many episodes a runner plays at once, after its last lack of memory."""
        halvings, most = self._num_out_of_memory[runner] - 1, self._max_episodes
        return most if halvings < 1 else max(min(most, self._num_episodes) >> halvings, 1)

    def _go_on_without(self, runner: int, reason: PlacementError) -> None:
        """Leaves a runner's work to the others. Raises: `reason` if there are none."""
        if self._serving == [runner]:
            raise reason
        self._serving.remove(runner)
        left = f"{len(self._serving)} of {self.num_runners}"
        logger.warning("the run goes on with %s env runners: %s", left, reason)
