"""The group of env runners, which replaces those that fail.

    driver                                           env runner (an actor)
    EnvRunnerGroup.ask ─▶ WorkQueue ── take ───────▶ plays groups
           play ◀── news, references to groups ───── collect
           load_adapter ── deliver ────────────────▶ serves the adapter, answers what it serves

A group's episodes stay where Ray keeps objects. The driver passes references on to the learners.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from agentpeft.policies.delivery.publish import Shipment, check, worst_of
from agentpeft.policies.errors import (
    DeliveryError,
    EngineError,
    EngineLostError,
    PayloadLostError,
    WorkerLostError,
)
from agentpeft.policies.messages import Ref
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import ActorSpec, missing
from agentpeft.policies.workers.pending_samples import PendingSamples
from agentpeft.policies.workers.runner_actor import EnvRunnerActor
from agentpeft.policies.workers.runner_roster import RunnerRoster
from agentpeft.policies.workers.work_queue import Desk, Job, Played, Receiver, WorkQueue

_LONGEST_WAIT_S = 5.0
_MAX_GROUPS_TOLD = 16
"""How many groups a runner tells of at once."""


class EnvRunnerGroup:
    """The env runners. Each takes the next groups from one queue when it has room for them.

    A runner that dies, whose engine fails, or that cannot prove what it serves is replaced and
    given the present adapter; the groups that it had go back to the head of the queue. The run ends
    if engines fail twice over the same group, if the new runner fails its delivery, or after
    `fault_tolerance.max_num_env_runner_restarts`. If there is no room for a new runner, as its node
    is gone, the others go on. Samples follow from seed and position, so they are what they would
    have been, whoever plays them (with `max_adapter_lag` 0, unless an episode is too slow; to the
    bit if the settings are `deterministic`, else but for rounding).

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
        self._sleeps = own.sleep_while_learning
        self.num_runners = self._actors.num_actors
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._roster = RunnerRoster(self._actors, settings, self.counts)
        most = own.max_concurrent_episodes
        self._queue = WorkQueue(self.num_runners, most, settings.deterministic)
        self._desks = [Desk(most) for _ in range(self.num_runners)]
        self._shipment: Shipment | None = None
        self._proofs: dict[int, dict[str, float]] = {}
        """Of the present delivery, by runner, where one was begun anew meanwhile."""

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

    @property
    def num_slots(self) -> int:
        """How many episodes all runners together play at once."""
        return sum(self._desks[runner].capacity for runner in self._roster.serving)

    @property
    def num_episodes_left(self) -> int:
        """How many episodes were asked for and are not over, as far as was heard."""
        in_play = sum(desk.num_handed - desk.num_ended for desk in self._desks)
        return self._queue.num_waiting_episodes + in_play

    def give_up(self) -> None:
        """Forgets the groups that wait, and lets those in play come to their end."""
        self._queue.clear()
        while any(desk.jobs for desk in self._desks):
            self.play()

    def load_adapter(self, shipment: Shipment) -> dict[str, float]:
        """Delivers an adapter to all runners; returns the proof's metrics, of the worst runner.

        Raises: DeliveryError if a runner fails twice, TrainingError if none may be replaced.
        """
        self._shipment, self._proofs = shipment, {}
        for runner in self._roster.follow_machines():
            self._take_back(runner)
            self._roster.join(runner)
        asked = {runner: self._deliver(runner, shipment) for runner in self._roster.serving}
        generations = {runner: self._roster.generation_of(runner) for runner in asked}
        if any(desk.jobs for desk in self._desks):
            while waiting := missing(self._actors, list(asked.values())):
                self.play(waiting)
        checked = []
        for runner, answer in asked.items():
            if generations[runner] != self._roster.generation_of(runner):
                checked.append(self._proofs.get(runner, {}))  # given the adapter then
                continue
            try:
                checked.append(self._check(answer, shipment))
            except PayloadLostError:  # the learner's adapter, with the learner
                raise
            except (DeliveryError, EngineError, WorkerLostError) as error:
                self.counts["num_failed_deliveries"] += 1
                checked.append(self._replace(runner, error))
        return worst_of(checked)

    def sleep(self) -> None:
        """Has the engines leave their memory to the learners, if the settings say so.

        No group may be in play. They wake by themselves. A runner that fails is replaced. Raises:
        as `play`.
        """
        failed = self._put_to_sleep(self._roster.serving if self._sleeps else ())
        while failed:
            for runner, error in failed.items():
                self._replace(runner, error)
            failed = self._put_to_sleep(failed.keys() & {*self._roster.serving})

    def _put_to_sleep(self, runners: Iterable[int]) -> dict[int, Exception]:
        """Returns the runners that failed, and with what, once all others sleep."""
        asked = {runner: self._actors.call(runner, EnvRunnerActor.sleep) for runner in runners}
        failed: dict[int, Exception] = {}
        for runner, answer in asked.items():
            try:
                self._actors.fetch([answer])
            except (EngineError, WorkerLostError) as error:
                failed[runner] = error
        return failed

    def close(self) -> None:
        """Ends the runners; idempotent."""
        self._actors.close()

    def _hand_out(self) -> None:
        """Gives groups to the runners that have room; the others are to tell when they have."""
        serving = {runner: self._desks[runner] for runner in self._roster.serving}
        for runner, jobs in self._queue.hand_out(serving).items():
            under_way = sum(job.request.num_episodes for job in serving[runner].jobs.values())
            self._roster.most_episodes = max(self._roster.most_episodes, under_way)
            self._actors.call(runner, EnvRunnerActor.take, [job.request for job in jobs])
        if not self._queue.wants_room:
            return
        for runner in self._roster.serving:  # whose `collect` does not return for room alone
            desk = self._desks[runner]
            if desk.news and not desk.is_until_room:
                desk.is_until_room = True
                self._actors.call(runner, EnvRunnerActor.wake)

    def _ask_for_news(self, runner: int) -> None:
        """Has a runner tell of the next groups that it finishes, unless it is asked already."""
        desk = self._desks[runner]
        if desk.news:
            return
        num_groups = min(len(desk.jobs), _MAX_GROUPS_TOLD)
        desk.is_until_room = self._queue.wants_room and runner in self._roster.serving
        desk.news = self._actors.call(
            runner,
            EnvRunnerActor.collect,
            num_groups,
            desk.is_until_room,
            num_returns=1 + num_groups,
            is_beside=True,
        )

    def _receive(self, runner: int) -> None:
        """Takes a runner's news, and replaces it if it has failed."""
        desk = self._desks[runner]
        (first, *groups), desk.news = desk.news, ()
        try:
            (got,) = self._actors.fetch([first])
        except (EngineError, WorkerLostError) as error:
            self._lose(runner, error)
            return
        for request, report, group in zip(got.requests, got.reports, groups, strict=False):
            job = desk.jobs.pop((request.mode, request.group_id))
            whole = group if report.adapter_versions else None  # else stale, or dropped
            job.receiver.receive(Played(request, runner, whole, report))
        desk.num_ended = got.num_ended

    def _lose(self, runner: int, reason: Exception) -> None:
        """Replaces a runner that has failed, and has what it had played again.

        One engine failure is forgiven; deaths of processes and of shared engines have no limit but
        the run's own, of restarts. Raises: `reason` where engines fail again over a group.
        """
        jobs = list(self._desks[runner].jobs.values())
        is_engine = isinstance(reason, EngineError) and not isinstance(reason, EngineLostError)
        if isinstance(reason, PayloadLostError):
            self.counts["num_redrawn_groups"] += len(jobs)
        if is_engine and any(job.num_failures for job in jobs):
            raise reason
        for job in jobs if is_engine else ():
            job.num_failures += 1
        if runner in self._roster.serving:
            self._replace(runner, reason)
        else:
            self._take_back(runner)

    def _take_back(self, runner: int) -> None:
        """Puts what a runner had at the head of the queue; it begins with nothing."""
        most = self._roster.max_episodes_of(runner)
        desk, self._desks[runner] = self._desks[runner], Desk(most)
        self._queue.put_back(list(desk.jobs.values()))

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
        self._roster.count_failure(runner, reason)
        is_begun = self._roster.begin_anew(runner)
        self._take_back(runner)
        if not is_begun or self._shipment is None:
            return {}
        try:
            proof = self._check(self._deliver(runner, self._shipment), self._shipment)
        except PayloadLostError:
            raise
        except (DeliveryError, EngineError, WorkerLostError) as error:
            raise DeliveryError(f"env runner {runner}, begun anew: {error}") from error
        self._proofs[runner] = proof
        return proof
