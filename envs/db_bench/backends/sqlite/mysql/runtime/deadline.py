"""When a statement must end: every function and comparison in Python looks at it as it begins."""

import math
import time
from collections.abc import Callable

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import MySQLError


class StatementInterrupted(Exception):  # noqa: N818 (not an error: the statement needs more time)
    """The statement was stopped at its deadline; it left nothing behind."""


class Deadline:
    """When the statement that runs on a connection must end.

    `end_s`: on the clock of `time.monotonic`. `interrupt` stops the statement where nothing can be
    raised; `is_missed`: that was done, and `is_cancelled`: by Ctrl-C. `refusal`: why a comparison
    could not be done.
    """

    def __init__(self) -> None:
        """Nothing is limited."""
        self.end_s = math.inf
        self.interrupt: Callable[[], None] | None = None
        self.is_missed = self.is_cancelled = False
        self.refusal: MySQLError | None = None

    def start(self, timeout_s: float, interrupt: Callable[[], None]) -> None:
        """Limits what runs from now on."""
        self.end_s = time.monotonic() + timeout_s
        self.interrupt = interrupt
        self.is_missed = self.is_cancelled = False
        self.refusal = None

    def stop(self) -> None:
        """Limits nothing any more."""
        self.end_s = math.inf
        self.interrupt = None

    def is_over(self) -> bool:
        """Returns whether the time is up."""
        return time.monotonic() > self.end_s

    def check(self) -> None:
        """Raises: StatementInterrupted where the time is up."""
        if self.is_over():
            raise StatementInterrupted

    def miss(self, is_cancelled: bool = False) -> None:
        """Ends a statement whose result is worth nothing: a comparison was answered unseen."""
        self.is_missed, self.is_cancelled = True, is_cancelled
        if self.interrupt is not None:
            self.interrupt()

    def refuse(self, error: MySQLError) -> None:
        """Ends a statement for the error that a comparison cannot raise."""
        self.refusal = error
        if self.interrupt is not None:
            self.interrupt()
