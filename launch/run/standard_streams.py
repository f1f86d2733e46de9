"""Standard output for the run's JSON lines alone, and a run that outlives whoever reads them.

A command may begin with any of the three standard streams closed (`>&-`): `open_closed_streams`.
"""

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TextIO, cast

logger = logging.getLogger(__name__)


def show_progress(text: str) -> None:
    """Says on a terminal what takes some seconds now; a log does without it."""
    if sys.stderr.isatty():
        print(f"{text} …", file=sys.stderr, flush=True)


class LastingStream(io.TextIOBase):
    """Writes to a stream until that fails (`| head`, a closed terminal, a full disk), then nowhere.

    The first failure is logged, no other, and none is raised: a run has its files.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        """`name` is what messages call the stream."""
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        """Returns the number of characters, whether or not they were written."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._let_go(error)
        return len(text)

    def flush(self) -> None:
        """Brings to the reader what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            self._let_go(error)

    def isatty(self) -> bool:
        """Whether the reader is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's own descriptor."""
        return self._stream.fileno()

    def _let_go(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # takes what is in the buffer, and all that comes
        os.close(nowhere)
        reason = (error.strerror or str(error)).lower()
        logger.warning("%s cannot be written (%s): the run goes on without", self._name, reason)


def open_closed_streams() -> None:
    """Leads standard streams that are closed nowhere; output in any encoding takes all characters.

    Python has None in their places. The next files that are opened would get their numbers, and
    what libraries and child processes print would be written into these.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # the lowest number first
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 (it stays)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    keeps_bytes = ("utf-8", "surrogateescape")  # paths that are no UTF-8 pass unchanged
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper) and (output.encoding, output.errors) != keeps_bytes:
        output.reconfigure(errors="backslashreplace")  # as standard error has it


@contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Yields standard output; within it, what all others print goes to standard error.

    Those are libraries, an environment's own `print`, what Ray tells of its workers, and what
    child processes and C libraries write to the descriptor.
    """
    errors = cast(TextIO, LastingStream(sys.stderr, "standard error"))
    with _own_stdout() as stream:
        output = cast(TextIO, LastingStream(stream, "standard output"))
        with redirect_stderr(errors), redirect_stdout(errors):
            try:
                yield output
            finally:
                output.flush()


@contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """Yields a stream of our own to standard output; meanwhile descriptor 1 is standard error."""
    shared = sys.__stdout__
    if shared is None or sys.stdout is not shared:  # somebody else's object, who reads all of it
        yield sys.stdout
        return
    with suppress(OSError):
        shared.flush()
    descriptor = os.dup(shared.fileno())
    os.dup2(sys.stderr.fileno(), shared.fileno())
    try:
        raw = os.fdopen(descriptor, "wb", closefd=False)
        yield io.TextIOWrapper(
            raw, shared.encoding, shared.errors, line_buffering=shared.line_buffering
        )
    finally:
        os.dup2(descriptor, shared.fileno())
        os.close(descriptor)
