"""DB-bench on a MySQL server in a container that is started on demand: `DockerDatabase`.

Works with images that take the official ones' environment variables (`mysql`, `mariadb`).
"""

import atexit
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.db_bench.backends.protocol import DatabaseLimits, DatabaseSession, Table
from agentpeft.envs.db_bench.backends.server.client import Address, ConnectionLostError, MySQLClient
from agentpeft.envs.db_bench.backends.server.database import MySQLDatabase
from agentpeft.envs.system.containers import (
    DOCKER_ERRORS,
    connect,
    need_image,
    one_line,
    remove_leftovers,
)
from agentpeft.envs.system.processes import identify_process

_LABEL = "agentpeft.db_bench"
_READY_DEADLINE_S = 120.0
_POLL_S = 0.3
_SERVER_OPTIONS = (
    "--skip-name-resolve --skip-log-bin --innodb-flush-log-at-trx-commit=0 --max-connections=500 "
    "--loose-local-infile=0 --loose-skip-symbolic-links --loose-mysql-native-password=ON "
    "--loose-enforce-storage-engine=InnoDB --loose-performance-schema=OFF "
    "--loose-disabled-storage-engines=MyISAM,MEMORY,ARCHIVE,CSV,BLACKHOLE,MERGE,FEDERATED"
)
"""Speed (nothing is worth a crash recovery) and the least an agent could lean on."""
_CONTAINER_OPTIONS = {
    "mem_limit": "2g",
    "pids_limit": 1024,
    "tmpfs": {"/var/lib/mysql": "size=1500m"},
    "security_opt": ["no-new-privileges"],
    "restart_policy": {"Name": "on-failure", "MaximumRetryCount": 5},
}


class DockerDatabase:
    """A `Database` in a container of `image`, one for all users of the image in this process."""

    def __init__(self, image: str, limits: DatabaseLimits | None = None) -> None:
        """Starts the container, or shares the running one.

        Raises: SettingsError (no such image), EnvFault (no daemon, server does not get ready).
        """
        self._container = _Container.share(image)
        try:
            self._database = MySQLDatabase(self._container.url, limits)
        except BaseException:
            self._container.release()
            raise
        self._is_closed = False

    def open(self, tables: Sequence[Table]) -> DatabaseSession:
        """See `MySQLDatabase.open`."""
        return self._database.open(tables)

    def close(self) -> None:
        """Closes the sessions' schemas; the last user's removes the container. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._database.close()
            self._container.release()


class _Container:
    """A running server; removed with its last user, at exit, or by a later process."""

    _shared: "dict[str, _Container]" = {}  # noqa: RUF012 (one per process is the point)
    _lock = threading.Lock()

    def __init__(self, image: str) -> None:
        """Raises: SettingsError, EnvFault."""
        self.image = image
        self.num_users = 0
        self._owner_pid = os.getpid()
        self._docker = connect()
        remove_leftovers(self._docker, _LABEL)
        need_image(self._docker, image)
        password, port = secrets.token_hex(16), _find_free_port()
        self.url = f"mysql://root:{password}@127.0.0.1:{port}"
        try:
            self._container = self._docker.containers.create(
                image,
                command=_SERVER_OPTIONS.split(),
                environment={"MYSQL_ROOT_PASSWORD": password, "MYSQL_ROOT_HOST": "%"},
                ports={"3306/tcp": ("127.0.0.1", port)},
                labels={_LABEL: identify_process(os.getpid())},
                **_CONTAINER_OPTIONS,
            )
            atexit.register(self.remove)
            self._container.start()
            self._wait_until_ready()
        except DOCKER_ERRORS as error:
            self.remove()
            raise EnvFault(f"cannot make a container of {image!r}: {one_line(error)}") from None
        except BaseException:
            self.remove()
            raise

    @classmethod
    def share(cls, image: str) -> "_Container":
        """Returns the process's container of an image; pair each call with one `release()`."""
        with cls._lock:
            if image not in cls._shared:
                cls._shared[image] = cls(image)
            container = cls._shared[image]
            container.num_users += 1
            return container

    def release(self) -> None:
        """Removes the container after its last user."""
        with self._lock:
            self.num_users -= 1
            if not self.num_users:
                del self._shared[self.image]
                self.remove()

    def remove(self) -> None:
        """Kills and removes the container; idempotent. In a forked child it does nothing."""
        atexit.unregister(self.remove)
        if os.getpid() != self._owner_pid:
            return
        with suppress(*DOCKER_ERRORS, AttributeError):  # there may be none yet
            self._container.remove(force=True, v=True)

    def _wait_until_ready(self) -> None:
        """Returns once root can log in. Raises: EnvFault with the last lines of the log."""
        deadline_s = time.monotonic() + _READY_DEADLINE_S
        while time.monotonic() < deadline_s:
            try:
                MySQLClient(Address.parse(self.url), 10).close()
            except ConnectionLostError:
                self._container.reload()
                has_failed = self._container.attrs["RestartCount"] > 0
                if has_failed or self._container.status not in ("running", "created"):
                    break
                time.sleep(_POLL_S)
            else:
                return
        log = self._container.logs(tail=5).decode("utf-8", "replace")
        raise EnvFault(
            f"the server in {self.image!r} does not get ready: {' | '.join(log.split(chr(10)))}"
        )


def _find_free_port() -> int:
    """Returns a port; a fixed one, so that a restarted container keeps it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
