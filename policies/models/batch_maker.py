"""The batches of pretraining, made ahead by another process: `open_batches`."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress

from agentpeft.envs import EnvFault
from agentpeft.envs.registration import find_own_module
from agentpeft.policies.messages import EpisodeGroup
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.oracle import WarmStartBatches
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.owned_process import can_own_children, owned_children

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Batch = list[EpisodeGroup]
Make = Callable[[int, int], Batch]


@contextmanager
def open_batches(settings: Settings, chat: ChatFormat) -> Iterator[Make]:
    """Gives `WarmStartBatches.make`; of many steps, the next batch of a stage is made meanwhile.

    Another process makes it, where the environment is the suite's: what a user has registered here
    is unknown there. Raises: as `imitated_groups`; EnvFault where that process was ended.
    """
    if not can_own_children() or find_own_module(settings.environment.id) is None:
        with closing(WarmStartBatches(settings, chat)) as batches:
            yield batches.make
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _Maker.start, (settings, chat)) as pool:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            with owned_children({}):
                ahead = _Ahead(pool)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield ahead.make
        except BrokenProcessPool as error:
            message = "the process that plays the warm start's episodes was ended"
            raise EnvFault(message) from error
        finally:
            with suppress(BrokenProcessPool):
                pool.submit(_Maker.close).result()


class _Ahead:
    """Has the batch made that is likely the next to be asked for."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._submit(0, 0)

    def make(self, step: int, stage: int) -> Batch:
        if self._submitted != (step, stage):  # a stage has ended
            self._submit(step, stage)
        batch = self._batch.result()
        self._submit(step + 1, stage)
        return batch

    def _submit(self, step: int, stage: int) -> None:
        self._submitted = (step, stage)
        self._batch: Future[Batch] = self._pool.submit(_Maker.make, step, stage)


class _Maker:
    """What the process keeps from one batch to the next.

    A signal to stop, which a terminal or `timeout` sends to all of a group, is for its owner alone.
    """

    batches: WarmStartBatches

    @classmethod
    def start(cls, settings: Settings, chat: ChatFormat) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not for its children
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        cls.batches = WarmStartBatches(settings, chat)

    @classmethod
    def make(cls, step: int, stage: int) -> Batch:
        return cls.batches.make(step, stage)

    @classmethod
    def close(cls) -> None:
        cls.batches.close()
