"""Child processes that end with their parent, however that ends, and start in a place of their own.

A process that `multiprocessing` spawns runs this file first, in place of the program's own main
module: it watches the parent from then on, and finds the rooms where they are not installed.
The watch is a thread, so a child that never lets another thread run would not be ended by it.
Standard library only.
"""

import os
import select
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

_PARENT = "AGENTPEFT_PARENT_PID"


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


if __name__ == "__mp_main__":
    end_with(int(os.environ[_PARENT]))
    os.environ[_PARENT] = str(os.getpid())  # what this one spawns ends with it
