"""What a run stands on, and what can be done to that: a disk, a database server, a second node."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

from process_parts import children_of, is_running
from ray_cluster import free_ports
from small_run import ROOT, make_environment, send

from agentpeft.envs import EnvFault, SettingsError
from agentpeft.envs.db_bench.backends.server.database import MySQLDatabase


class DatabaseServer:
    """A private MariaDB, which can be started again with the data that it had."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made; the two above it are opened to the server's user."""
        self._folder = folder
        folder.parent.mkdir(exist_ok=True)
        for parent in list(folder.parents)[:2]:
            parent.chmod(0o755)
        script = [str(ROOT / ".ci" / "mysql_server.sh"), "start", str(folder)]
        started = subprocess.run(script, stdout=subprocess.PIPE, check=True, text=True)
        self.url, (self.pid,) = started.stdout.strip(), self.pids()
        self._command = Path(f"/proc/{self.pid}/cmdline").read_text().split("\0")[:-1]

    def pids(self) -> list[int]:
        """Returns the server's process, none where it has ended."""
        pid = int((self._folder / "pid").read_text())
        return [pid] if is_running(pid) else []

    def mend(self) -> None:
        """Starts the server again where it has ended, and waits until it makes schemas.

        MariaDB that has waited for room looks for it once a minute.
        """
        if not self.pids():
            (self._folder / "init.sql").touch()  # the script has removed what it named
            log = (self._folder / "server.log").open("a")
            subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        for _ in range(150):
            with suppress(EnvFault, SettingsError), closing(MySQLDatabase(self.url)) as database:
                database.open([]).close()
                return
            time.sleep(1)
        raise TimeoutError("the database server does not come back")

    def close(self) -> None:
        """Ends the server and removes its data."""
        send(self.pids(), signal.SIGKILL)
        script = [str(ROOT / ".ci" / "mysql_server.sh"), "stop", str(self._folder)]
        subprocess.run(script, check=True)


class TwoNodes:
    """A Ray cluster of two nodes on this machine: room for the learner, and for two runners."""

    def __init__(self, folder: Path) -> None:
        """Starts both; `folder` is the run's."""
        self._folder, self._nodes = folder, list[subprocess.Popen[bytes]]()
        (self._port,) = free_ports(1)
        self.address = f"127.0.0.1:{self._port}"
        self._start("--head", f"--port={self._port}", "--num-cpus=1", "--include-dashboard=false")
        for _ in range(600):
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", self._port), 1)):
                break
            time.sleep(0.2)
        self.add()

    def add(self) -> None:
        """Adds a node for the runners."""
        self._start(f"--address={self.address}", "--num-cpus=2")

    def pids(self) -> list[int]:
        """Returns the processes of the node that was added last."""
        return [self._nodes[-1].pid, *children_of(self._nodes[-1].pid)]

    def machinery(self) -> set[int]:
        """Returns the processes of the cluster, without the actors that runs have started."""
        own = {node.pid for node in self._nodes} | {
            pid for node in self._nodes for pid in children_of(node.pid)
        }
        return {pid for pid in own if not _is_actor(pid)}

    def close(self) -> None:
        """Ends the cluster."""
        for node in self._nodes:
            send([node.pid, *children_of(node.pid)], signal.SIGKILL)
            node.wait()

    def _start(self, *options: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        with (self._folder / "cluster.log").open("a") as log:
            self._nodes.append(
                subprocess.Popen(
                    [*command, "--disable-usage-stats"],
                    env=make_environment(self._folder),
                    stdout=log,
                    stderr=log,
                )
            )


def _is_actor(pid: int) -> bool:
    with suppress(OSError):
        names = ("ray::EnvRunnerActor", "ray::LearnerActor")
        return Path(f"/proc/{pid}/cmdline").read_text().startswith(names)
    return False


class SmallDisk:
    """A file system in memory whose size can be changed; making it needs root."""

    def __init__(self, folder: Path) -> None:
        """Mounts it at `folder`, with room enough."""
        self._folder = folder
        self._mount("size=1g")

    def fill(self, left_bytes: int) -> None:
        """Leaves so much room."""
        for _ in range(100):
            disk = os.statvfs(self._folder)
            used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
            with suppress(subprocess.CalledProcessError):  # something was written meanwhile
                return self._mount(f"remount,size={used + left_bytes}")
        raise TimeoutError("the disk cannot be filled")

    def empty(self) -> None:
        """Gives the room back."""
        self._mount("remount,size=1g")

    def close(self) -> None:
        """Unmounts it."""
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

    def _mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "chaos", str(self._folder)]
        subprocess.run(command, check=True, capture_output=True)
