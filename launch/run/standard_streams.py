"""Standard output for the run's JSON lines alone, and a run that outlives whoever reads them."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import TextIOBase
from typing import TextIO, cast

logger = logging.getLogger(__name__)


class LastingStream(TextIOBase):
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


@contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Yields standard output; within it, what all others print goes to standard error.

    Those are libraries, an environment's own `print`, and what Ray tells of its workers.
    """
    output = cast(TextIO, LastingStream(sys.stdout, "standard output"))
    errors = cast(TextIO, LastingStream(sys.stderr, "standard error"))
    with redirect_stderr(errors), redirect_stdout(errors):
        yield output
