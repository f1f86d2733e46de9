"""Processes and shared memory that are looked for after something was killed."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Returns the processes below a process."""
    own: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            own += map(int, (task / "children").read_text().split())
    return own + [each for child in own for each in children_of(child)]


def is_running(pid: int) -> bool:
    """Returns whether a process is there, and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def seconds_until_gone(pids: Iterable[int], limit_s: float) -> float:
    """Waits for processes to end. Raises: TimeoutError."""
    start_s, left = time.monotonic(), list(pids)
    while left := [pid for pid in left if is_running(pid)]:
        if time.monotonic() - start_s > limit_s:
            raise TimeoutError(f"after {limit_s:g} s there are still {left}")
        time.sleep(0.05)
    return time.monotonic() - start_s


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> bool:
    """Waits for a condition to hold; returns whether it does."""
    deadline_s = time.monotonic() + limit_s
    while not (holds := condition()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return holds


def read_processes(name: str) -> Iterator[tuple[int, str]]:
    """Yields all processes' numbers, and the text of one of their files below /proc."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield int(process.name), (process / name).read_text(errors="replace")
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue


def processes_of(folder: Path) -> dict[int, str]:
    """Returns the processes that have `folder` in their environment, and their command lines."""
    own = {pid for pid, text in read_processes("environ") if str(folder) in text}
    return {pid: text for pid, text in read_processes("cmdline") if pid in own and text}


def shared_files(pid: int) -> list[str]:
    """Returns the files in shared memory that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.split()[5] for line in lines if "/dev/shm/" in line]


def leftovers(folder: Path, before: set[Path], limit_s: float = 60) -> list[object]:
    """Returns what is left of a folder's runs after at most `limit_s` seconds.

    That is their processes, and what is new in shared memory since `before` and nobody uses.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        new = set(Path("/dev/shm").iterdir()) - before
        mapped = "".join(text for _, text in read_processes("maps")) if new else ""
        left = [*processes_of(folder), *(path for path in new if str(path) not in mapped)]
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.2)
