"""Runners and a learner in virtual time: nothing waits, so nothing depends on the machine.

They stand where actors do. `Algorithm`, the queue of groups and the batches are the real ones; a
runner is its slots, and an episode one turn whose length its seed decides.
"""

import heapq
from collections import deque
from itertools import count

import numpy as np

from agentpeft.envs import Outcome
from agentpeft.policies.delivery.version import ack_of, make_version
from agentpeft.policies.messages import EpisodeGroup, EpisodeRecord
from agentpeft.policies.rollout.environments import TRAIN_STREAM
from agentpeft.policies.rollout.groups import PlayCounts, PlayedGroup
from agentpeft.policies.workers.learner_group import LearnerActor
from agentpeft.policies.workers.runner_group import EnvRunnerActor


class VirtualTime:
    """The time, and what is to happen."""

    def __init__(self):
        self.now_s, self._events, self._numbers = 0.0, [], count()
        self.played = {}
        """By group, the spans of its episodes: since when, until when, by which version."""

    def after(self, seconds, function):
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), function))

    def go_on(self):
        self.now_s, _, function = heapq.heappop(self._events)
        function()


class Promise:
    """A result that may not be there yet."""

    def __init__(self):
        self.is_there, self.value = False, None

    def set(self, value):
        self.is_there, self.value = True, value


class OpenGroup:
    def __init__(self, request):
        self.request, self.num_left, self.version = request, request.num_episodes, None
        self.num_playing, self.is_left_out = 0, False
        self.since_s = {}


class VirtualRunner:
    """As `TakenGroups` does, it plays the next episode whenever one ends."""

    def __init__(self, time, simulation, settings):
        self.time, self.simulation, self.settings = time, simulation, settings
        self.num_free = settings.env_runners.max_concurrent_episodes
        self.num_taken = self.num_ended = self.num_calls = self.version = 0
        self.busy_s = self.last_s = 0.0
        self.waiting, self.finished, self.under_way = deque(), deque(), []
        self.asked = None

    def read_busy_s(self):
        """Returns the seconds of all slots in which an episode was under way."""
        num_busy = self.settings.env_runners.max_concurrent_episodes - self.num_free
        self.busy_s += num_busy * (self.time.now_s - self.last_s)
        self.last_s = self.time.now_s
        return self.busy_s

    def take(self, requests):
        for request in requests:
            group = OpenGroup(request)
            self.under_way.append(group)
            self.waiting.extend((group, sample) for sample in range(request.num_episodes))
            self.num_taken += request.num_episodes
        self._play()
        self._tell()

    def wake(self):
        self._tell(is_woken=True)

    def collect(self, max_groups, until_room, promises):
        self.num_calls += 1
        self.asked = max_groups, until_room, promises
        self._tell()

    def deliver(self, adapter):
        self.version = adapter.version
        oldest = adapter.version - self.settings.max_adapter_lag
        for group in list(self.under_way):
            if group.version is not None and self.settings.in_flight_updates:
                for sample in list(group.since_s):  # turns go on where they were
                    self._note(group, sample)
                    group.since_s[sample] = self.time.now_s
                group.version = self.version
            if group.version is not None and group.version < oldest:
                group.is_left_out = True
                self.read_busy_s()
                self.num_free += group.num_playing
                self.waiting = deque(seat for seat in self.waiting if seat[0] is not group)
                self.num_ended += group.num_left
                self._finish(group)
        self._play()
        self._tell()
        return ack_of(adapter), None

    def _play(self):
        self.read_busy_s()
        while self.num_free and self.waiting:
            group, sample = self.waiting.popleft()
            if group.version is None:
                group.version = self.version
            group.num_playing += 1
            self.num_free -= 1
            group.since_s[sample] = self.time.now_s
            seed = self.settings.seed, TRAIN_STREAM, group.request.group_id, sample, 0
            self.time.after(
                self.simulation.length_s(seed),
                lambda own=group, number=sample: self._end(own, number),
            )

    def _note(self, group, sample):
        span = group.since_s.pop(sample), self.time.now_s, group.version
        self.time.played.setdefault(group.request.group_id, []).append(span)

    def _end(self, group, sample):
        if group.is_left_out:
            return
        self._note(group, sample)
        self.read_busy_s()
        self.num_free += 1
        self.num_ended += 1
        group.num_left -= 1
        group.num_playing -= 1
        if not group.num_left:
            self._finish(group)
        self._play()
        self._tell()

    def _finish(self, group):
        self.under_way.remove(group)
        self.finished.append(group)

    def _tell(self, is_woken=False):
        if self.asked is None:
            return
        max_groups, until_room, promises = self.asked
        capacity = self.settings.env_runners.max_concurrent_episodes
        has_room = until_room and self.num_taken - self.num_ended < capacity
        if not (self.finished or has_room or is_woken):
            return
        self.asked = None
        told = [self.finished.popleft() for _ in range(min(max_groups, len(self.finished)))]
        news = self.num_ended, list(map(self._report, told))
        groups = [self._to_group(group) for group in told]
        rest = [None] * (max_groups - len(told))
        for promise, value in zip(promises, [news, *groups, *rest], strict=True):
            promise.set(value)

    def _to_group(self, group):
        return EpisodeGroup(group.request.group_id, "task", (), group.version, ())

    def _report(self, group):
        group_id, is_whole = group.request.group_id, not group.is_left_out
        records = tuple(
            EpisodeRecord(
                group_id, n, "task", (), group.version, Outcome.FAILURE, float(n % 2), 1, 1, ()
            )
            for n in range(group.request.num_episodes)
        )
        return PlayedGroup(
            request=group.request,
            version=group.version,
            group=None,
            records=records if is_whole else (),
            is_dropped=False,
            is_left_out=not is_whole,
            task_hash=group_id,
            counts=PlayCounts(),
            last_fault="",
            env_s=0.0,
        )


class _VirtualActors:
    """See `Actors`. Waiting lets the time go on."""

    def __init__(self, time, num_actors):
        self.time, self.num_actors = time, num_actors

    def fetch(self, refs):
        while not all(ref.is_there for ref in refs):
            self.time.go_on()
        return [ref.value for ref in refs]

    def wait(self, refs, timeout_s=None):
        while True:
            ready = [place for place, ref in enumerate(refs) if ref.is_there]
            if ready or timeout_s == 0:
                return ready
            self.time.go_on()

    def find_places(self):
        return ["stays"] * self.num_actors

    def close(self):
        """Nothing: there are no processes."""


class VirtualRunners(_VirtualActors):
    def __init__(self, time, simulation, settings):
        super().__init__(time, settings.env_runners.num_env_runners)
        self.runners = [VirtualRunner(time, simulation, settings) for _ in range(self.num_actors)]

    def call(self, index, method, *args, num_returns=1, is_beside=False):
        promises, runner = [Promise() for _ in range(num_returns)], self.runners[index]
        if method.__name__ == "collect":
            runner.collect(*args, promises)
        elif method.__name__ in ("take", "wake"):
            promises[0].set(getattr(runner, method.__name__)(*args))
        elif method.__name__ != "ping":
            (adapter,), _ = args
            promises[0].set(runner.deliver(adapter.value))
        return promises if num_returns > 1 else promises[0]


class VirtualLearners(_VirtualActors):
    def __init__(self, time, simulation):
        super().__init__(time, 1)
        self.simulation, self.version, self.num_groups = simulation, 0, 0
        self.lags = []
        """Of each span that was learnt from: its version, how far behind it was, its seconds."""

    def call(self, index, method, *args, num_returns=1, is_beside=False):
        promises = [Promise() for _ in range(num_returns)]
        if method.__name__ == "receive":
            self.num_groups = len(args[0])
            spans = [span for ref in args[0] for span in self.time.played.pop(ref.value.group_id)]
            self.lags += [
                (self.version, self.version - version, until_s - since_s)
                for since_s, until_s, version in spans
            ]
            promises[0].set(None)
        elif method.__name__ == "update":
            self.version += 1
            metrics = {"train/num_groups": float(self.num_groups)}
            self.time.after(self.simulation.learn_s, lambda: promises[0].set(metrics))
        elif method.__name__ == "ping":
            self.time.after(1.0, lambda: promises[0].set(None))
        else:
            adapter = make_version(self.version, "run", {"w": np.zeros(1, np.float32)}, 1.0)
            for promise, value in zip(promises, [adapter, ack_of(adapter), None], strict=True):
                promise.set(value)
        return promises if num_returns > 1 else promises[0]


def virtual_kinds(time, simulation):
    """Returns the classes of runners and of learners, and lists that get runners and learner."""
    runners, learners = [], []

    class Runner(EnvRunnerActor):
        @classmethod
        def start_all(cls, spec, settings):
            actors = VirtualRunners(time, simulation, settings)
            runners.extend(actors.runners)
            return actors

    class Learner(LearnerActor):
        @classmethod
        def start_all(cls, spec, settings):
            learners.append(VirtualLearners(time, simulation))
            return learners[0]

    return Runner, Learner, runners, learners
