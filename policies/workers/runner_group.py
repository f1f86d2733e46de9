"""The env runners: what one does in its process, and the group, which replaces those that fail.

    driver                                           env runner (an actor)
    EnvRunnerGroup.ask ─▶ RunnerQueue ── take ─────▶ plays groups
           play ◀── reports, references to groups ── collect
           deliver ── deliver ─────────────────────▶ serves the adapter, answers what it serves

A group's episodes stay where Ray keeps objects. The driver passes references on to the learners.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from agentpeft.policies.delivery.deliver import Answer, Shipment, check, serve
from agentpeft.policies.errors import DeliveryError, EngineError, PayloadLostError, WorkerLostError
from agentpeft.policies.messages import Ids, Ref
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest, PlayedGroup, PlayedSoFar, SampleReport
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actor, ActorSpec, missing, resolve
from agentpeft.policies.workers.runner_queue import RunnerJobs, RunnerQueue

if TYPE_CHECKING:  # only where a runner fails, or a machine comes or goes
    from agentpeft.policies.workers.restart import RunnerRestarts

Receiver: TypeAlias = Callable[[PlayedGroup], None]
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

    def deliver(self, adapter: Sequence[Ref], sequences: Sequence[Ids] | None) -> Answer:
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

        Returns the count of ended episodes and the groups without episodes, which the driver
        fetches, then the episodes of `max_groups`, None where fewer are finished.
        """
        num_ended, played = self._runner.collect(max_groups, until_room)
        alone = [replace(group, group=None) for group in played]
        unfilled = [None] * (max_groups - len(played))
        return [(num_ended, alone), *(group.group for group in played), *unfilled]

    def sleep(self) -> None:
        """Puts the engine to sleep, freeing GPU memory, until it is needed. Raises: EngineError."""
        self._runner.sleep()

    def close(self) -> None:
        """Closes engine and environments; idempotent."""
        self._runner.close()


class EnvRunnerGroup:
    """The env runners. Each takes the next groups from one queue when it has room for them.

    A runner that dies, whose engine fails, or that cannot prove what it serves is replaced
    (`restart`); its groups go back to the head of the queue. Samples follow from seed and position,
    whoever plays them.

    Single-threaded: `play` waits for a runner's results and gives groups to runners with room. Call
    it repeatedly while waiting for something else, so that runners stay busy. Whatever waits
    raises: TrainingError, DeliveryError, PlacementError, and what playing raises.
    """

    def __init__(
        self,
        settings: Settings,
        counts: Counter[str] | None = None,
        kind: type[EnvRunnerActor] = EnvRunnerActor,
    ) -> None:
        """`counts` is added to. Raises: PlacementError, and in one process what starting raises."""
        self.settings, runners = settings, settings.env_runners
        spec = ActorSpec(
            name="the env runners",
            kind=kind,
            num_actors=runners.num_env_runners,
            num_cpus=settings.num_cpus_per_process,
            num_gpus=runners.num_gpus_per_env_runner,
            num_threads=settings.threads_per_env_runner,
            is_closed=True,
        )
        self.actors = kind.start_all(spec, settings)
        self.num_runners = self.actors.num_actors
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.serving: Sequence[int] = range(self.num_runners)
        """The runners that are given work, in order."""
        most = runners.max_concurrent_episodes
        self.queue = RunnerQueue(self.num_runners, most, settings.deterministic)
        self.jobs = [RunnerJobs(most) for _ in range(self.num_runners)]
        self._receivers: dict[GroupRequest, Receiver] = {}
        self.num_engine_failures: Counter[GroupRequest] = Counter()
        """Engines that failed over a group that is not finished."""
        self.shipment: Shipment | None = None
        self.proofs: dict[int, dict[str, float]] = {}
        """The metrics of the runners that have proven that they serve the present adapter."""

    @property
    def version(self) -> int:
        """The adapter version that was sent last; 0 before."""
        return 0 if self.shipment is None else self.shipment.receipt.version

    @property
    def num_slots(self) -> int:
        """How many episodes all runners together play at once."""
        return len(self.serving) * self.settings.env_runners.max_concurrent_episodes

    @property
    def num_episodes_left(self) -> int:
        """How many episodes were asked for and are not over, as far as was heard."""
        in_play = sum(jobs.num_given - jobs.num_ended for jobs in self.jobs)
        return self.queue.num_waiting_episodes + in_play

    def sample(self, requests: Sequence[GroupRequest]) -> tuple[list[Ref], SampleReport]:
        """Plays groups before all others that wait, and merges them."""
        played: list[PlayedGroup] = []
        self.ask(played.append, requests, is_first=True)
        so_far = PlayedSoFar(len(requests))
        while len(played) < len(requests):
            self.play()
            so_far.tell(len(played))
        report = SampleReport(played)
        return report.groups, report

    def ask(
        self, receive: Receiver, requests: Sequence[GroupRequest], *, is_first: bool = False
    ) -> None:
        """Adds groups to the queue, and assigns those that a runner has room for.

        `receive` is called with each group that is finished, by `play` or whatever calls that.
        """
        self._receivers.update(dict.fromkeys(requests, receive))
        self.queue.add_groups(requests, is_first=is_first)
        self._assign_groups()

    def play(self, until: Sequence[Ref] = ()) -> None:
        """Waits for results, or for one of `until` and then not for long, and assigns groups."""
        self._assign_groups()
        busy = [runner for runner, jobs in enumerate(self.jobs) if jobs.requests]
        for runner in busy:
            self._ask_for_results(runner)
        results = [self.jobs[runner].results[0] for runner in busy]
        ready = self.actors.wait([*results, *until], timeout_s=_LONGEST_WAIT_S if until else None)
        for index in ready:
            if index < len(busy):
                self._receive_results(busy[index])
        self._assign_groups()

    def give_up(self) -> None:
        """Forgets the groups that wait, and lets those in play come to their end."""
        self.queue.clear()
        while any(jobs.requests for jobs in self.jobs):
            self.play()
        self._receivers.clear()
        self.num_engine_failures.clear()

    def deliver(self, shipment: Shipment) -> list[dict[str, float]]:
        """Has all runners serve an adapter, and returns what proves it, each runner's metrics.

        Where groups are in play, it assigns further ones until all runners have answered.
        """
        self.shipment, self.proofs = shipment, {}
        places = self.actors.find_places()
        if len(self.serving) < self.num_runners or any(place != "stays" for place in places):
            self._restarts.follow_machines(places)
        answers = {runner: self.send_to(runner, shipment) for runner in self.serving}
        if any(jobs.requests for jobs in self.jobs):
            while waiting := missing(self.actors, list(answers.values())):
                self.play(waiting)
        for runner, answer in answers.items():
            if runner in self.proofs:  # it was replaced meanwhile, and has proven the adapter then
                continue
            try:
                self.proofs[runner] = self.check_answer(answer, shipment)
            except PayloadLostError:  # the learner's adapter, with the learner
                raise
            except (DeliveryError, EngineError, WorkerLostError) as error:
                self.counts["num_failed_deliveries"] += 1
                self._restarts.replace(runner, error)
        return [self.proofs[runner] for runner in answers]

    def sleep(self) -> None:
        """Puts the engines to sleep, if the settings say so, freeing GPU memory for the learners.

        No group may be in play. They wake by themselves. A runner that fails is replaced.
        """
        awake = set(self.serving if self.settings.env_runners.sleep_while_learning else ())
        while awake:
            asked = {runner: self.actors.call(runner, EnvRunnerActor.sleep) for runner in awake}
            failed: dict[int, EngineError | WorkerLostError] = {}
            for runner, answer in asked.items():
                try:
                    self.actors.fetch([answer])
                except (EngineError, WorkerLostError) as error:
                    failed[runner] = error
            # An engine that starts while another one frees memory fails over what it then measures
            for runner, fault in failed.items():
                self._restarts.replace(runner, fault)
            awake = failed.keys() & {*self.serving}

    def send_to(self, runner: int, shipment: Shipment) -> Ref:
        """Sends an adapter to one runner; returns a reference to its answer."""
        adapter, sequences = [shipment.adapter], shipment.sequences
        return self.actors.call(runner, EnvRunnerActor.deliver, adapter, sequences)

    def check_answer(self, returned: Ref, shipment: Shipment) -> dict[str, float]:
        """Returns an answer's metrics. Raises: DeliveryError, EngineError, WorkerLostError."""
        (answer,) = self.actors.fetch([returned])
        return check(answer, shipment)

    def close(self) -> None:
        """Ends the runners; idempotent."""
        self.actors.close()

    def _assign_groups(self) -> None:
        """Gives groups to the runners that have room; the others are to tell when they have."""
        serving = {runner: self.jobs[runner] for runner in self.serving}
        for runner, requests in self.queue.assign_groups(serving).items():
            self.actors.call(runner, EnvRunnerActor.take, requests)
        if not self.queue.wants_room:
            return
        for runner, jobs in serving.items():  # whose `collect` does not return for room alone
            if jobs.results and not jobs.is_until_room:
                jobs.is_until_room = True
                self.actors.call(runner, EnvRunnerActor.wake)

    def _ask_for_results(self, runner: int) -> None:
        """Asks a runner for the next groups that it finishes, unless it is asked already."""
        jobs = self.jobs[runner]
        if jobs.results:
            return
        num_groups = min(len(jobs.requests), _MAX_GROUPS_TOLD)
        jobs.is_until_room = self.queue.wants_room and runner in self.serving
        jobs.results = self.actors.call(
            runner,
            EnvRunnerActor.collect,
            num_groups,
            jobs.is_until_room,
            num_returns=1 + num_groups,
            is_beside=True,
        )

    def _receive_results(self, runner: int) -> None:
        """Passes a runner's finished groups on, or replaces the runner if it has failed."""
        jobs = self.jobs[runner]
        (first, *groups), jobs.results = jobs.results, ()
        try:
            ((jobs.num_ended, played),) = self.actors.fetch([first])
        except (EngineError, WorkerLostError) as error:
            self._restarts.lose(runner, error)
            return
        for group, episodes in zip(played, groups, strict=False):
            jobs.requests.remove(group.request)
            self.num_engine_failures.pop(group.request, None)
            whole = episodes if group.is_whole else None
            self._receivers.pop(group.request)(replace(group, runner=runner, group=whole))

    @property
    def _restarts(self) -> "RunnerRestarts":
        from agentpeft.policies.workers.restart import RunnerRestarts

        return RunnerRestarts(self)
