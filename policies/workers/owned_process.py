"""Child processes that end with their parent, however that ends, and start in a place of their own.

A process that `multiprocessing` spawns runs this file first, in place of the program's own main
module: it watches the parent from then on, and finds the rooms where they are not installed.
The watch is a thread, so a child that never lets another thread run would not be ended by it.
What such a process logs of its exceptions is noted for its owner, who hears of an exit status only.
Standard library only.
"""

import json
import logging
import os
import select
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

_PARENT = "AGENTPEFT_PARENT_PID"
NOTES_VARIABLE = "AGENTPEFT_CHILD_EXCEPTIONS"
"""In a child's environment: the file to which it and its own children add their exceptions."""


@contextmanager
def owned_children(variables: Mapping[str, str], cores: Collection[int] = ()) -> Iterator[None]:
    """Within it, processes that this thread spawns have `variables`, run on `cores` (none: as
    this one), and end with this process. What others set in the environment is undone too.
    """  # noqa: D205
    environment, main = dict(os.environ), sys.modules["__main__"]
    own_cores = os.sched_getaffinity(0)
    stand_in = ModuleType("__main__")
    stand_in.__file__ = __file__
    try:
        os.environ.update({**variables, _PARENT: str(os.getpid())})
        sys.modules["__main__"] = stand_in
        if cores:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        os.sched_setaffinity(0, own_cores)
        sys.modules["__main__"] = main
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def can_own_children() -> bool:
    """Returns whether this system tells a process of another one's end."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # not Linux, or one without it
        return False
    return True


def end_with(parent: int) -> None:
    """Ends this process once its parent is gone (a zombie is); at once if that has happened."""
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch, args=[descriptor], name="owner", daemon=True).start()


def _watch(descriptor: int) -> None:
    owner = select.poll()  # `select.select` refuses a descriptor above 1,023
    owner.register(descriptor, select.POLLIN)
    owner.poll()
    os._exit(1)


def note_exceptions(path: Path) -> None:
    """Has the exceptions that this process logs as errors, or ends with, added to a file."""
    make_record, hook = logging.getLogRecordFactory(), sys.excepthook

    def make_and_note(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        if record.exc_info and record.exc_info[1] and record.levelno >= logging.ERROR:
            _note(path, record.getMessage(), record.exc_info[1])
        return record

    def note_last(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _note(path, "uncaught", error)
        hook(kind, error, trace)

    logging.setLogRecordFactory(make_and_note)
    sys.excepthook = note_last


def _note(path: Path, message: str, error: BaseException) -> None:
    while error.__cause__ is not None:
        error = error.__cause__
    line = json.dumps({"message": message, "error": f"{type(error).__name__}: {error}"})
    with suppress(OSError), path.open("a", encoding="utf-8") as file:  # its owner reads no more
        file.write(line + "\n")


def read_root_exception(path: Path) -> str | None:
    """Returns the exception with which the first process failed to start, in one line.

    Where none says so, the last exception that was noted; None without any.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    notes = [json.loads(line) for line in text.splitlines()]
    if not notes:
        return None
    fatal = [note for note in notes if "failed to start" in note["message"]]
    chosen = fatal[0] if fatal else notes[-1]
    return " ".join(str(chosen["error"]).split())


if __name__ == "__mp_main__":
    if NOTES_VARIABLE in os.environ:
        note_exceptions(Path(os.environ[NOTES_VARIABLE]))
    end_with(int(os.environ[_PARENT]))
    os.environ[_PARENT] = str(os.getpid())  # what this one spawns ends with it
