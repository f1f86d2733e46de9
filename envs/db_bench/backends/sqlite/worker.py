"""Worker processes that run SQLite statements which may hang in C or need much memory.

Parent side: `WorkerPool`. Child side: `main`, which limits its own memory, writes no files, and
dies at a statement's deadline (by a thread beside the interpreter, so also inside a C call and also
when the parent was killed) or when the parent's end of the pipe closes.

Weaker elsewhere than on Linux: macOS does not bound the address space, and Windows limits nothing
but the memory that SQLite itself takes.
"""

import contextlib
import faulthandler
import os
import pickle
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal, TypeAlias, cast

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.db_bench.backends.sqlite.connection import (
    RUN_ERRORS,
    GuardedConnection,
    Transaction,
    TransactionResult,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import StatementInterrupted
from agentpeft.envs.system import processes

_START_TIMEOUT_S = 60.0
_GRACE_S = 0.25
_ADDRESS_SPACE_BYTES = 2 * 1024**3
_SQLITE_HEAP_BYTES = 256 * 1024**2
_WINDOWS_VARIABLES = ("SYSTEMROOT", "TEMP", "TMP")


@dataclass(frozen=True)
class Request:
    """A transaction, the database that it runs on, and how large that may grow."""

    transaction: Transaction
    image: bytes
    max_database_mib: int


@dataclass(frozen=True)
class Reply:
    """A transaction's result and the database after it."""

    result: TransactionResult
    image: bytes


Answer: TypeAlias = Reply | Exception | Literal["ready"]


class WorkerPool:
    """Worker processes, started at need and kept; thread-safe.

    At most `num_workers` statements run at once. After a fork the child starts workers of its own.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        """`num_workers` None: one per processor, at least two."""
        self._num_workers = num_workers or max(2, os.cpu_count() or 1)
        self._is_closed = False
        self._forget()

    def run(self, request: Request) -> Reply:
        """Runs a transaction and returns its result and the database after it.

        The time that it waits for a worker is not the transaction's.

        Raises: StatementInterrupted, MySQLError, sqlite3.Error, MemoryError (the
        worker died of the transaction), EnvFault (no worker can be started).
        """
        answer: Answer | None = None
        is_new = False
        while answer is None and not is_new:  # one that was idle may have been killed meanwhile
            with self._worker() as worker:
                is_new = worker.is_new
                start_s = time.monotonic()
                answer = worker.run(request)
                rest_s = request.transaction.timeout_s - (time.monotonic() - start_s)
                request = replace(
                    request, transaction=replace(request.transaction, timeout_s=max(rest_s, 0.001))
                )
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Reply):
            raise MemoryError
        return answer

    def close(self) -> None:
        """Ends the workers, also those that a statement is using, once it is done. Idempotent."""
        self._is_closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().stop()

    @contextlib.contextmanager
    def _worker(self) -> Iterator["_Worker"]:
        if self._owner_pid != os.getpid():
            self._forget()
        with self._slots:
            worker = self._take_idle() or _Worker()
            try:
                yield worker
            finally:
                if worker.is_healthy:
                    self._idle.append(worker)
                else:
                    worker.stop()
                if self._is_closed:
                    self.close()

    def _take_idle(self) -> "_Worker | None":
        with contextlib.suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.is_alive():
                    return worker
                worker.stop()
        return None

    def _forget(self) -> None:
        self._owner_pid = os.getpid()
        self._idle: list[_Worker] = []
        self._slots = threading.BoundedSemaphore(self._num_workers)


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self) -> None:
        self.is_new = True
        program = f"from {__name__} import main; main()"
        # None of this process's variables, but what Windows cannot do without.
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        environment |= {name: os.environ[name] for name in _WINDOWS_VARIABLES if name in os.environ}
        try:
            self._process = processes.start(
                [sys.executable, "-c", program], pipes=processes.PIPE, env=environment
            )
        except OSError as error:
            raise EnvFault(f"no SQLite worker process could be started: {error}") from None
        if self._exchange(None, _START_TIMEOUT_S) != "ready":
            self.stop()
            raise EnvFault("a SQLite worker process did not start")
        self.is_healthy = True

    def run(self, request: Request) -> Answer | None:
        """Returns what the worker answers; None if it died before the deadline."""
        start_s = time.monotonic()
        self.is_new = self.is_healthy = False
        answer = self._exchange(request, request.transaction.timeout_s + 2 * _GRACE_S)
        if answer is not None:
            self.is_healthy = True
            return answer
        is_late = time.monotonic() - start_s >= request.transaction.timeout_s
        return StatementInterrupted() if is_late else None

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what it did not read cannot be flushed
                    pipe.close()
        self._process.wait()

    def _exchange(self, request: Request | None, timeout_s: float) -> Answer | None:
        """Returns the answer to a request; None if the process died, or is killed after a time."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None, "both are pipes"  # noqa: S101
        assert answers is not None, "both are pipes"  # noqa: S101
        timer = threading.Timer(timeout_s, self._process.kill)  # ends a read or write that blocks
        timer.start()
        try:
            if request is not None:
                pickle.dump(request, requests)
                requests.flush()
            # A process forked just as this one began may hold the pipe: then killing ends nothing
            if sys.platform != "win32" and not wait([answers.fileno()], timeout_s):
                return None
            return cast(Answer, pickle.load(answers))  # noqa: S301 (of our own process)
        except (OSError, EOFError, pickle.UnpicklingError):  # the last: killed while it answered
            return None
        finally:
            timer.cancel()
            timer.join()


def _limit_process() -> None:
    """Bounds the process's memory and forbids files, as far as the system can."""
    if sys.platform != "win32":
        import resource

        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES,) * 2)
        for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
            resource.setrlimit(limit, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    heap = sqlite3.connect(":memory:")
    heap.execute(f"PRAGMA hard_heap_limit = {_SQLITE_HEAP_BYTES}")
    heap.close()


def _run(request: Request) -> Answer:
    connection = GuardedConnection(request.max_database_mib, request.image)
    try:
        result = connection.run(request.transaction)
        return Reply(result, connection.image())
    except RUN_ERRORS as error:
        return error
    finally:
        connection.close()


def main() -> None:
    """Answers requests until the parent closes its end."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (for as long as it lives)
    _limit_process()
    answer: Answer = "ready"
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while True:
            pickle.dump(answer, answers)
            answers.flush()
            request: Request = pickle.load(requests)  # noqa: S301 (of our own process)
            timeout_s = request.transaction.timeout_s + _GRACE_S
            faulthandler.dump_traceback_later(timeout_s, exit=True, file=nowhere)
            answer = _run(request)
            faulthandler.cancel_dump_traceback_later()
