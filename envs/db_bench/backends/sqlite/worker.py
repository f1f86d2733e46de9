"""Worker processes that run SQLite statements which may hang in C or need much memory.

Parent side: `WorkerPool`. Child side: `main`, which
limits its own memory, writes no files, and dies at a statement's deadline (by a timer beside the
interpreter, so also inside a C call and also when the parent was killed) or when the parent's
socket closes.

Weaker elsewhere than on Linux: macOS does not bound the address space, and Windows limits nothing
but the memory that SQLite itself takes.
"""

import contextlib
import faulthandler
import os
import queue
import secrets
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

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
_KEY_VARIABLE = "AGENTPEFT_WORKER_KEY"
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
        self.is_healthy = False
        start = _start_with_listener if sys.platform == "win32" else _start_with_pipe
        try:
            self._process, self._socket = start()
        except OSError as error:
            raise EnvFault(f"no SQLite worker process could be started: {error}") from None
        if self._receive(_START_TIMEOUT_S) != "ready":
            self.stop()
            raise EnvFault("a SQLite worker process did not start")
        self.is_healthy = True

    def run(self, request: Request) -> Answer | None:
        """Returns what the worker answers; None if it died before the deadline."""
        timeout_s = request.transaction.timeout_s + _GRACE_S
        start_s = time.monotonic()
        self.is_new = self.is_healthy = False
        try:
            self._socket.send(request)
            answer = self._receive(timeout_s + _GRACE_S)
        except OSError:
            answer = None
        if answer is not None:
            self.is_healthy = True
            return answer
        is_late = time.monotonic() - start_s >= request.transaction.timeout_s
        return StatementInterrupted() if is_late else None

    def is_alive(self) -> bool:
        """Returns whether the process still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Kills the process and waits for its end."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _receive(self, timeout_s: float) -> Answer | None:
        try:
            return cast(Answer, self._socket.recv()) if self._socket.poll(timeout_s) else None
        except EOFError:
            return None


_Started: TypeAlias = tuple[processes.Process, "Connection[Any, Any]"]


def _start_with_pipe() -> _Started:
    """Starts a worker that inherits its end of a socket. Raises: OSError."""
    own_end, child_end = Pipe()
    with child_end:
        descriptor = child_end.fileno()
        command = _command(f"main(Connection({descriptor}))")
        process = processes.start(command, pass_fds=[descriptor], env=_environment())
    return process, own_end


def _start_with_listener() -> _Started:
    """Starts a worker that connects to this process: Windows inherits no descriptors.

    Raises: OSError.
    """
    key = secrets.token_bytes(32)
    accepted: queue.SimpleQueue[Connection[Any, Any]] = queue.SimpleQueue()
    with Listener(authkey=key) as listener:
        thread = threading.Thread(target=lambda: accepted.put(listener.accept()), daemon=True)
        thread.start()
        command = _command(f"connect({listener.address!r})")
        process = processes.start(command, env={**_environment(), _KEY_VARIABLE: key.hex()})
        try:
            return process, accepted.get(timeout=_START_TIMEOUT_S)
        except queue.Empty:
            process.kill()
            raise OSError("it does not connect") from None


def _command(program: str) -> list[str]:
    """Returns what a worker executes."""
    return [sys.executable, "-c", f"from {__name__} import Connection, connect, main; {program}"]


def _environment() -> dict[str, str]:
    """Returns a worker's variables: none of this process's, but what Windows cannot do without."""
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return own | {name: os.environ[name] for name in _WINDOWS_VARIABLES if name in os.environ}


def _limit_process() -> None:
    """Bounds the process's memory and forbids files, as far as the system can."""
    if sys.platform != "win32":
        import resource

        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES,) * 2)
        for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
            resource.setrlimit(limit, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
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


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Ends this process if what is inside takes longer."""
    if sys.platform == "win32":
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
    else:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def connect(address: Any) -> None:
    """Answers the requests of the process that listens at `address`."""
    main(Client(address, authkey=bytes.fromhex(os.environ.pop(_KEY_VARIABLE))))


def main(parent: "Connection[Any, Any]") -> None:
    """Answers requests until the parent closes its end."""
    _limit_process()
    parent.send("ready")
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while True:
            request: Request = parent.recv()
            with _deadline(request.transaction.timeout_s + _GRACE_S):
                answer = _run(request)
            parent.send(answer)
