"""The batches of pretraining, made ahead by another process: `make_batches`."""

import multiprocessing
import signal
from collections.abc import Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

from agentpeft.envs import EnvFault
from agentpeft.envs.registration import find_own_module
from agentpeft.policies.messages import EpisodeGroup
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.oracle import warm_start_batches
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.owned_process import can_own_children, owned_children

_MANY_STEPS = 100
"""For fewer, a process takes longer to start than it saves."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Batch = list[EpisodeGroup]


def make_batches(settings: Settings, chat: ChatFormat) -> Iterator[Batch]:
    """Yields the batches of a warm start; of many, the next one is made meanwhile.

    Another process makes it, where the environment is the suite's: what a user has registered here
    is unknown there. Raises: as `oracle_groups`; EnvFault where that process was ended.
    """
    is_worth_it = settings.warm_start.num_steps >= _MANY_STEPS and can_own_children()
    if not is_worth_it or find_own_module(settings.environment.id) is None:
        yield from warm_start_batches(settings, chat)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _Maker.start, (settings, chat)) as pool:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            with owned_children({}):
                ahead = pool.submit(_Maker.make_next)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            while (batch := ahead.result()) is not None:
                ahead = pool.submit(_Maker.make_next)
                yield batch
        except BrokenProcessPool as error:
            message = "the process that plays the warm start's episodes was ended"
            raise EnvFault(message) from error
        finally:
            with suppress(BrokenProcessPool):
                pool.submit(_Maker.close).result()


class _Maker:
    """What the process keeps from one batch to the next.

    A signal to stop, which a terminal or `timeout` sends to all of a group, is for its owner alone.
    """

    batches: Generator[Batch, None, None]

    @classmethod
    def start(cls, settings: Settings, chat: ChatFormat) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not for its children
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        cls.batches = warm_start_batches(settings, chat)

    @classmethod
    def make_next(cls) -> Batch | None:
        return next(cls.batches, None)

    @classmethod
    def close(cls) -> None:
        """Closes the environment, wherever the last batch has left it."""
        cls.batches.close()
