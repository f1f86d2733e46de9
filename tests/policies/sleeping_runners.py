"""Runners whose engine sleeps instead of decoding, and a learner that sleeps instead of learning.

All else is real: the queue, the runners' own scheduling of episodes, the environments, the groups,
the deliveries. An episode is one turn, whose length is lognormal by its seed.
"""

import asyncio
import math
import pickle
import time
from dataclasses import dataclass

import numpy as np
from hosted_actors import IN_THREADS

from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.engines.player import Player
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Completion, StopReason
from agentpeft.policies.models.load import load_base
from agentpeft.policies.rollout.chat import make_chat
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.workers.learner_group import LearnerActor
from agentpeft.policies.workers.runner_group import EnvRunnerActor


@dataclass(frozen=True)
class Simulation:
    """What is simulated: seconds of an episode (the median, and the longest), and of an update.

    `slowness` multiplies the seconds of some runners, by index.
    """

    median_s: float
    max_s: float
    learn_s: float
    sigma: float = 1.0

    def length_s(self, seed):
        """Returns how long an episode takes, by the seed of its turn."""
        normal = np.random.default_rng(seed).standard_normal()
        return min(self.median_s * math.exp(self.sigma * normal), self.max_s)


class SlotClock:
    """The sum of the seconds of all that was under way."""

    def __init__(self):
        self._total_s, self._num_open, self._last_s = 0.0, 0, time.monotonic()

    def change(self, difference):
        self._total_s, self._last_s = self.read_s(), time.monotonic()
        self._num_open += difference

    def read_s(self):
        return self._total_s + self._num_open * (time.monotonic() - self._last_s)


class SleepingEngine:
    """Answers each turn by the same text, once its length is over; serves several versions.

    An interrupted one has no text yet, and what is left of its length lies ahead.
    """

    served_effect = math.nan

    def __init__(self, chat, simulation, num_versions):
        self.ids = np.array(chat.encode_action("0"))
        self.simulation, self.num_versions = simulation, num_versions
        self.clock, self._sleeping, self._left_s = SlotClock(), {}, {}

    def update_sessions(self, opened=(), closed=()):
        for session in closed:
            self._left_s.pop(session, None)
            future = self._sleeping.pop(session, None)
            if future is not None and not future.done():
                future.set_exception(EngineError("its session was closed"))

    async def generate(self, request):
        loop = asyncio.get_running_loop()
        future = self._sleeping[request.session] = loop.create_future()
        left_s = self._left_s.pop(request.session, None)
        length_s = self.simulation.length_s(request.seed) if left_s is None else left_s
        start_s = loop.time()
        alarm = loop.call_later(length_s, lambda: future.done() or future.set_result(True))
        self.clock.change(1)
        try:
            is_over = await future
        finally:
            self.clock.change(-1)
            alarm.cancel()
            self._sleeping.pop(request.session, None)
        if not is_over:
            self._left_s[request.session] = length_s - (loop.time() - start_s)
        ids = self.ids if is_over else self.ids[:0]
        reason = StopReason.STOP_TOKEN if is_over else StopReason.INTERRUPTED
        logprobs = np.full(len(ids), -1.0, np.float32)
        return Completion(ids, logprobs, reason, request.adapter_version)

    def interrupt(self):
        for future in list(self._sleeping.values()):
            if not future.done():
                future.set_result(False)

    def load_adapter(self, adapter):
        return ack_of(adapter)

    async def score(self, sequences):
        raise EngineError(f"a sleeper cannot score {len(sequences)} sequences")

    def close(self):
        pass


_CHATS = {}
"""By process: all its runners read and write alike."""


def chat_of(settings):
    name = repr(settings.tiny)
    if name not in _CHATS:
        _CHATS[name] = make_chat(load_base(settings), settings)
    return _CHATS[name]


def sleeping_kinds(simulation, runner_hosting=IN_THREADS, learner_hosting=IN_THREADS):
    """Returns the classes of runners and of learners of a simulation."""

    class SleepingRunner(EnvRunnerActor):
        num_calls = news_bytes = group_bytes = num_groups = 0

        @classmethod
        def start_all(cls, spec, settings):
            return runner_hosting.start(spec, settings)

        def make_runner(self, settings):
            chat = chat_of(settings)
            self.engine = SleepingEngine(chat, simulation, settings.num_served_versions)
            return EnvRunner(settings, player=Player(chat, self.engine))

        def collect(self, max_groups, until_room):
            news, *groups = super().collect(max_groups, until_room)
            self.num_calls += 1
            self.news_bytes += len(pickle.dumps(news))
            whole = [group for group in groups if group is not None]
            self.group_bytes += len(pickle.dumps(whole))
            self.num_groups += len(whole)
            return [news, *groups]

        def read_counts(self):
            """Seconds of busy slots, calls, and bytes so far."""
            counts = self.num_calls, self.news_bytes, self.group_bytes, self.num_groups
            return np.array([self.engine.clock.read_s(), *counts])

    class SleepingLearner(LearnerActor):
        @classmethod
        def start_all(cls, spec, settings):
            return learner_hosting.start(spec, settings)

        def update(self):
            groups, self.received = self.received, ()
            time.sleep(simulation.learn_s)
            self.learner.version += 1
            return {"train/num_groups": float(len(groups))}

    return SleepingRunner, SleepingLearner
