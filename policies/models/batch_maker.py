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
_Batch = list[EpisodeGroup]
_open: list[WarmStartBatches] = []
"""In the process that makes batches: what it keeps from one to the next."""


@contextmanager
def open_batches(settings: Settings, chat: ChatFormat) -> Iterator[Callable[[int, int], _Batch]]:
    """Gives `WarmStartBatches.make`, whose next batch of a stage is made meanwhile.

    Another process makes it, where the environment is the suite's: what a user has registered here
    is unknown there. Raises: as `imitated_groups`; EnvFault where that process was ended.
    """
    is_known = find_own_module(settings.environment.id) is not None
    if not (is_known and can_own_children()):
        with closing(WarmStartBatches(settings, chat)) as batches:
            yield batches.make
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _start, (settings, chat)) as pool:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            with owned_children({}):  # it starts with the first batch
                ahead: dict[tuple[int, int], Future[_Batch]] = {(0, 0): pool.submit(_make, 0, 0)}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        def make(step: int, stage: int) -> _Batch:
            batch = ahead.pop((step, stage), None) or pool.submit(_make, step, stage)
            result = batch.result()
            ahead.clear()  # else that of a stage that has ended would stay
            ahead[step + 1, stage] = pool.submit(_make, step + 1, stage)
            return result

        try:
            yield make
        except BrokenProcessPool as error:
            message = "the process that plays the warm start's episodes was ended"
            raise EnvFault(message) from error
        finally:
            with suppress(BrokenProcessPool):
                pool.submit(_close).result()


def _start(settings: Settings, chat: ChatFormat) -> None:
    # A signal to stop, which a terminal or `timeout` sends to all of a group, is for the owner
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not for its children
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    _open.append(WarmStartBatches(settings, chat))


def _make(step: int, stage: int) -> _Batch:
    return _open[0].make(step, stage)


def _close() -> None:
    _open[0].close()
