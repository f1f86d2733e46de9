"""Runners and engines that fail when a test says so; a test hands the class to the group.

A fault in another process is a file: the first process that removes it commits the fault, so there
is one fault however many runners look, and none in the runner that replaces the faulty one.
"""

import os
from pathlib import Path

from agentpeft.policies.engines.player import Player, make_player
from agentpeft.policies.engines.transformers.engine import start_transformers
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.workers.runner_group import EnvRunnerActor


def take(path: Path) -> bool:
    """Returns whether the fault is this process's to commit."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


class EngineAround:
    """Does what another engine does; subclasses override what goes wrong."""

    def __init__(self, engine):
        self.engine = engine

    @property
    def num_versions(self):
        return self.engine.num_versions

    @property
    def served_effect(self):
        return self.engine.served_effect

    def update_sessions(self, opened=(), closed=()):
        self.engine.update_sessions(opened, closed)

    async def generate(self, request):
        return await self.engine.generate(request)

    def interrupt(self):
        self.engine.interrupt()

    def sleep(self):
        self.engine.sleep()

    def load_adapter(self, adapter):
        return self.engine.load_adapter(adapter)

    async def score(self, sequences):
        return await self.engine.score(sequences)

    def close(self):
        self.engine.close()


class SignalledEngine(EngineAround):
    """Sends its process a signal, at the `at`-th request since the fault's file is there."""

    def __init__(self, engine, path, signum, at):
        super().__init__(engine)
        self.path, self.signum, self.at, self.num_calls = path, signum, at, 0

    async def generate(self, request):
        self.num_calls += self.path.exists()
        if self.num_calls == self.at and take(self.path):
            self.fail()
        return await self.engine.generate(request)

    def fail(self):
        os.kill(os.getpid(), self.signum)


def runner_with(around):
    """Returns a class of env runners whose engine is `around(engine)`."""

    class FaultyRunner(EnvRunnerActor):
        def make_runner(self, settings):
            if settings.env_runners.engine == "vllm":
                from agentpeft.policies.engines.vllm.start import start_vllm

                chat, engine = start_vllm(settings)
                return EnvRunner(settings, player=Player(chat, around(engine)))
            player = make_player(settings, None, lambda *args: around(start_transformers(*args)))
            return EnvRunner(settings, player)

    return FaultyRunner
