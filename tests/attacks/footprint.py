"""What this process and all below it use: memory, descriptors, processes; and its processor time."""

import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


@dataclass(frozen=True)
class Footprint:
    """Sums over this process and its descendants."""

    rss_mib: float
    num_descriptors: int
    num_processes: int
    num_cgroups: int


def measure_footprint() -> Footprint:
    """Returns what is used now."""
    pids = [os.getpid(), *descendants(os.getpid())]
    rss_kib = num_descriptors = 0
    for pid in pids:
        try:
            rss_kib += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KIB
            num_descriptors += len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (no paths needed)
        except OSError:
            continue
    name = f"agentpeft-os-*-{os.getpid()}-*"
    num_cgroups = sum(1 for d in ("", "*/") for _ in Path("/sys/fs/cgroup").glob(f"{d}{name}"))
    return Footprint(round(rss_kib / 1024, 1), num_descriptors, len(pids), num_cgroups)


def descendants(pid: int) -> Iterator[int]:
    """Yields the processes below a process."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
        children = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except OSError:
        return
    for child in map(int, "".join(children).split()):
        yield child
        yield from descendants(child)


def cpu_seconds() -> float:
    """Returns the processor time of this process and all below it, the ended ones too."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / _TICKS
    return total
