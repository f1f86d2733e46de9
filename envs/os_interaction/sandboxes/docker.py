"""Episodes in docker containers, which are made ahead of use: `DockerSandbox`."""

import atexit
import json
import os
import struct
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.channel import (
    Channel,
    ChannelClosedError,
    Refusal,
    compose_program,
    is_readable,
)
from agentpeft.envs.os_interaction.sandboxes.container_disk import ContainerDisk
from agentpeft.envs.os_interaction.sandboxes.images import DEFAULT_IMAGE, IMAGE_FOLDER
from agentpeft.envs.os_interaction.sandboxes.inside.kernel import CAPABILITIES, USER_LIMITS
from agentpeft.envs.os_interaction.sandboxes.live_checks import MAX_CHANGED_BYTES, VIEW
from agentpeft.envs.os_interaction.sandboxes.sandbox import CommandResult, Sandbox, SandboxLimits
from agentpeft.envs.system.containers import (
    DOCKER_ERRORS,
    connect,
    need_default_image,
    need_image,
    one_line,
    remove_leftovers,
)
from agentpeft.envs.system.processes import identify_process

LABEL = "agentpeft.os_interaction"
_PROGRAM = compose_program("container_init")
_LOADER = "import json, sys; exec(json.loads(sys.stdin.readline()))"
"""Reads the program from the channel, which keeps it out of the list of processes."""
_MAX_AHEAD = 4
_OWN_PROCESSES = 4
_START_TIMEOUT_S = 60.0
_WATCH_S = 0.2


class DockerSandbox(Sandbox):
    """A `Sandbox` with a new container for each episode; see docs/environments/os_sandboxes.md.

    Sandboxes of one process with the same settings share a pool of containers made ahead of use.
    An episode that ends its container or fills the disk continues in a new one, without its files.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        image: str | None = None,
        runtime: str | None = None,
    ) -> None:
        """`image` None: the default one; `runtime` None: the daemon's default.

        Raises: EnvFault if no daemon answers.
        """
        super().__init__(limits, image, runtime)
        self._pool: ContainerPool | None = ContainerPool.share(*self._settings)
        self._container: EpisodeContainer | None = None

    def reset(self) -> None:
        """See `Sandbox.reset`."""
        super().reset()
        self.has_lost_files = False
        if self._pool and self._pool.is_broken:
            self.close()
        self._pool = self._pool or ContainerPool.share(*self._settings)
        self._replace(self._pool)

    def close(self) -> None:
        """See `Sandbox.close`."""
        super().close()
        pool, self._pool = self._pool, None
        container, self._container = self._container, None
        if pool and container:
            pool.discard(container)
        if pool:
            pool.release()

    def ask(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """See `Sandbox.ask`; None if process 1 has ended under a command.

        Raises: EnvFault, Refusal.
        """
        if self._container is None or self._pool is None:
            raise EnvFault(f"a sandbox must be reset before {operation!r}")
        self._pool.need_watch()
        try:
            return self._container.channel.request(operation, *arguments, timeout_s=timeout_s)
        except (ChannelClosedError, Refusal) as error:
            if isinstance(error, Refusal) and operation != "freeze":
                raise
            self.has_lost_files = True
            container = self._replace(self._pool)
        return None if operation == "run" else container.channel.request(operation, *arguments)

    def _check(self, command: str, script: str, timeout_s: float) -> CommandResult:
        try:
            files = self.ask("list_changes", MAX_CHANGED_BYTES)
        except Refusal as refusal:
            return CommandResult(str(refusal), None)
        assert self._pool  # noqa: S101 (`ask` has raised without one)
        pool, container = self._pool, self._pool.take()
        try:
            why = container.channel.request("apply_changes", files, *VIEW, script)
            if why:
                return CommandResult(why, None)
            answer = container.channel.request("run", command, timeout_s, timeout_s=timeout_s)
            return CommandResult.read(answer)
        finally:
            pool.discard(container)

    def _replace(self, pool: "ContainerPool") -> "EpisodeContainer":
        if self._container:
            pool.discard(self._container)
            self._container = None
        self._container = pool.take()
        return self._container


class EpisodeContainer:
    """A running container whose process 1 answers on a channel that nobody else has."""

    def __init__(self, client: Any, settings: dict[str, Any], limits: SandboxLimits) -> None:
        """Raises: EnvFault."""
        self._frames = bytearray()
        try:
            self._container = client.containers.create(**settings)
            parameters = {"stdin": 1, "stdout": 1, "stream": 1}
            self._attached = client.api.attach_socket(self._container.id, params=parameters)
            self._socket = self._attached._sock
            self.channel = Channel(self._socket.sendall, self._receive)
            self._container.start()
            self.channel.write_line(json.dumps(_PROGRAM))
            # Has the first shell started. One that does not start later is the agent's doing.
            timeout_s = _START_TIMEOUT_S
            shell = self.channel.request("run", ":", timeout_s, timeout_s=timeout_s)
            if not shell or shell["exit_code"] != 0:
                raise OSError(shell["output"] if shell else "no memory for a shell")
            self._container.reload()  # so that its process is known
            self.disk = ContainerDisk(self._container.attrs, limits)
        except (*DOCKER_ERRORS, ChannelClosedError, OSError) as error:
            self.remove()
            raise EnvFault(
                f"cannot make a container ({one_line(error)}): the image needs /bin/bash and "
                "Python 3.9 at /usr/bin/python3"
            ) from None

    def kill(self) -> None:
        """Ends every process, which closes the channel. Thread-safe."""
        with suppress(*DOCKER_ERRORS):
            self._container.kill()

    def remove(self) -> None:
        """Kills and removes the container, while no other thread waits for it. Idempotent."""
        with suppress(OSError, AttributeError):  # which may not be there yet
            self._attached.close()
            self._socket.close()
        with suppress(*DOCKER_ERRORS, AttributeError):
            self._container.remove(force=True, v=True)

    def _receive(self, timeout_s: float) -> bytes:
        """Returns what process 1 has written, without the frames that the daemon puts it in."""
        while True:
            if len(self._frames) >= 8:
                end = 8 + struct.unpack(">I", self._frames[4:8])[0]
                if len(self._frames) >= end:
                    data = bytes(self._frames[8:end])
                    del self._frames[:end]
                    return data
            if not is_readable(self._socket.fileno(), timeout_s):
                return b""
            data = self._socket.recv(1 << 16)
            if not data:
                return b""
            self._frames += data


class ContainerPool:
    """Containers of one image and one set of limits, made by threads while episodes run."""

    _shared: "dict[object, ContainerPool]" = {}  # noqa: RUF012 (one per process is the point)
    _lock = threading.Lock()

    def __init__(self, limits: SandboxLimits, image: str | None, runtime: str | None) -> None:
        """Raises: EnvFault, SettingsError."""
        self._limits = limits
        self._image = image
        self._key = (limits, image, runtime, os.getpid())
        self._owner_pid = os.getpid()
        self._num_users = 0
        self._is_open = False
        self._client = connect()
        remove_leftovers(self._client, LABEL)
        self._settings = _compose_settings(limits, image or DEFAULT_IMAGE, runtime)

    @classmethod
    def share(
        cls, limits: SandboxLimits, image: str | None, runtime: str | None
    ) -> "ContainerPool":
        """Returns this process's pool for some settings; pair each call with one `release()`."""
        key = (limits, image, runtime, os.getpid())
        with cls._lock:
            pool = cls._shared.get(key)
            if pool is None or pool.is_broken:
                pool = cls._shared[key] = cls(limits, image, runtime)
            pool._num_users += 1
            return pool

    @property
    def is_broken(self) -> bool:
        """True if the disk is no longer watched, so that episodes would have no limit of it."""
        return self._is_open and not self._watcher.is_alive()

    def need_watch(self) -> None:
        """Raises: EnvFault if the watch has died; `share` then gives another pool."""
        if self.is_broken:
            raise EnvFault("the thread that watches the disk of docker sandboxes has died")

    def take(self) -> EpisodeContainer:
        """Returns a new container for one episode, and has others made. Raises: EnvFault."""
        with self._lock:
            if not self._is_open:
                self._open()
            # One for the caller, and one ahead for each user's next episode.
            num_ahead = min(self._num_users, _MAX_AHEAD) + 1
            while len(self._ready) < num_ahead:
                self._ready.append(self._executor.submit(self._make))
            future = self._ready.popleft()
        return future.result()

    def discard(self, container: EpisodeContainer) -> None:
        """Removes a container in the background."""
        with self._lock:
            if self._is_open:
                self._executor.submit(self._remove, container)

    def release(self) -> None:
        """Ends one use; the last one removes every container."""
        with self._lock:
            self._num_users -= 1
            if self._num_users:
                return
            if self._shared.get(self._key) is self:
                del self._shared[self._key]
            was_open, self._is_open = self._is_open, False
        if was_open:
            self._executor.shutdown(wait=True)
            self._close()

    def _open(self) -> None:
        if self._image is None:
            need_default_image(self._client, DEFAULT_IMAGE, str(IMAGE_FOLDER))
        else:
            need_image(self._client, self._image)
        self._ready: deque[Future[EpisodeContainer]] = deque()
        self._alive: set[EpisodeContainer] = set()
        self._executor = ThreadPoolExecutor(_MAX_AHEAD, "containers")
        atexit.register(self._close)
        self._watcher = threading.Thread(target=self._watch, name="disk watch", daemon=True)
        self._is_open = True
        self._watcher.start()

    def _close(self) -> None:
        """Removes every container. In a forked child it does nothing."""
        atexit.unregister(self._close)
        self._is_open = False
        if os.getpid() == self._owner_pid:
            for container in list(self._alive):
                self._remove(container)
            self._client.close()

    def _make(self) -> EpisodeContainer:
        container = EpisodeContainer(self._client, self._settings, self._limits)
        self._alive.add(container)
        return container

    def _remove(self, container: EpisodeContainer) -> None:
        container.remove()
        self._alive.discard(container)

    def _watch(self) -> None:
        """Ends episodes over their disk limit, where the file system has no quota to do so."""
        while self._is_open:
            time.sleep(_WATCH_S)
            for container in list(self._alive):
                if container.disk.is_over():
                    container.kill()


def _compose_settings(limits: SandboxLimits, image: str, runtime: str | None) -> dict[str, Any]:
    disk_bytes = limits.disk_mib << 20
    command = ["/usr/bin/python3", "-I", "-S", "-c", _LOADER, str(limits.max_output_chars)]
    return {
        "image": image,
        "command": command,
        "entrypoint": [],
        "stdin_open": True,
        "user": "0:0",
        "hostname": "sandbox",
        "runtime": runtime,
        "network_mode": "none",
        "network_disabled": True,  # nor any work of the daemon on the one without a network
        "ipc_mode": "private",
        "shm_size": "16m",
        "cap_drop": ["ALL"],
        "cap_add": CAPABILITIES.split(),
        "security_opt": ["no-new-privileges"],
        "mem_limit": f"{limits.memory_mib}m",
        "memswap_limit": f"{limits.memory_mib}m",
        "pids_limit": limits.num_processes + _OWN_PROCESSES,
        "nano_cpus": int(limits.cpus * 1e9),
        "ulimits": [
            {"Name": "fsize", "Soft": disk_bytes, "Hard": disk_bytes},
            {"Name": "core", "Soft": 0, "Hard": 0},
            *({"Name": name.lower(), "Soft": n, "Hard": n} for name, n in USER_LIMITS.items()),
        ],
        "log_config": {"Type": "none"},
        "labels": {LABEL: identify_process(os.getpid())},
    }
