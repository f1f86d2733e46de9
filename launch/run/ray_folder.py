"""The temporary folder of a run's own Ray: it goes when the run does, with what still runs in it.

The kernel ends those that the driver has started with it, but not what those have started: Ray's
agents outlive a killed driver by a minute. So a process of ours, this file run as a script, waits
for the driver's end, gives Ray some seconds, ends what is left and deletes the folder. Where it is
killed too, the next run deletes the folder. It also says so where the driver has ended without a
word: it was killed, or Ray's core, which ends the process itself where its raylet is gone, did so.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)
_PREFIX = "agentpeft-ray-"
_LONGEST = f"/{_PREFIX}12345678/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
_MAX_SOCKET_PATH = 107
"""Bytes in the path of a Unix socket; Ray does not start with a longer one."""
_GRACE_S = 5.0
OVER, GOODBYE = b"over", b"ended"
_COPIES = "working_dir_files"
"""The folder in which Ray keeps its temporary copies of uploaded working directories."""
_sweepers: list["subprocess.Popen[bytes]"] = []


def is_in_ray_copy(path: Path) -> bool:
    """Returns whether `path` lies in Ray's temporary copy of a working directory."""
    return _COPIES in path.parts


def tell_sweeper(word: bytes) -> None:
    """Says how far this process is: `OVER`, all is saved and Ray ends; `GOODBYE`, it ends too."""
    for sweeper in _sweepers:
        if sweeper.stdin is not None:
            with suppress(OSError):
                os.write(sweeper.stdin.fileno(), word)


@contextmanager
def ray_folder(logs: Path) -> Iterator[Path]:
    """Yields the folder. Where its run fails, Ray's logs are copied to `logs` first."""
    from agentpeft.envs.system.whole_files import temporary_folder
    from agentpeft.policies.workers.time_limits import is_hanging

    with temporary_folder(_choose_parent(), _PREFIX) as folder:
        # Of a session of its own: what a terminal tells its foreground is not for it
        sweeper = subprocess.Popen(  # noqa: S603 (our own file)
            [sys.executable, "-I", __file__, str(folder), str(os.getpid()), str(logs.parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        _sweepers.append(sweeper)
        try:
            yield folder
        except Exception:
            _copy_logs(folder, logs)
            raise
        finally:
            # Ray that hangs would end this process with a status of its own, once it is killed:
            # the sweeper then waits for this process's end, which closes its standard input too
            tell_sweeper(GOODBYE)
            _sweepers.remove(sweeper)
            if not is_hanging():
                sweeper.communicate()


def _choose_parent() -> Path:
    """Returns where Ray's sockets have room for their paths."""
    named = [os.environ.get(name) for name in ("RAY_TMPDIR", "TMPDIR")]
    parents = [Path(name).resolve() for name in (*named, "/tmp") if name]  # noqa: S108 (as Ray does)
    for parent in parents:
        if parent.is_dir() and len(os.fsencode(f"{parent}{_LONGEST}")) <= _MAX_SOCKET_PATH:
            break
    return parent


def _copy_logs(folder: Path, logs: Path) -> None:
    for session_logs in folder.glob("session_2*/logs"):
        with suppress(OSError, shutil.Error):
            shutil.copytree(session_logs, logs, dirs_exist_ok=True)
            logger.info("Ray's logs of this run are in %s", logs)


def _processes_in(folder: str, driver: int) -> Iterator[int]:
    """Yields Ray's processes that have a file of the folder open, without the driver."""
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == driver:
            continue
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            is_ray = command.startswith(b"ray::") or b"/ray/" in command
            if is_ray and any(_leads_into(folder, file) for file in (process / "fd").iterdir()):
                yield int(process.name)


def _leads_into(folder: str, file: Path) -> bool:
    try:
        return str(file.readlink()).startswith(f"{folder}/")
    except OSError:  # closed meanwhile
        return False


def _sweep(folder: str, driver: int, run_dir: str) -> None:
    told = sys.stdin.buffer.read()
    if not told.endswith(GOODBYE):
        end = "the run has ended without a word (it was killed, or Ray's core has ended it since "
        end += "its raylet was gone)"
        if told:
            end = "stopped, as by SIGTERM, while Ray shut down; the run was over, and is saved"
        with suppress(OSError):
            print(f"error: {end}: {run_dir}", file=sys.stderr)
    with suppress(OSError):
        os.close(2)  # whoever reads it until its end need not wait for what follows
    deadline_s = time.monotonic() + _GRACE_S
    while any(_processes_in(folder, driver)) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    for pid in _processes_in(folder, driver):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _sweep(sys.argv[1], int(sys.argv[2]), sys.argv[3])
