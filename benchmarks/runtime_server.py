"""The process that holds a `RuntimeSandbox`: its overlays, its container and the container's shell.

In the order of `bubblewrap_helper.py`: an episode's files are an overlay on a tmpfs, read from
outside once all processes are dead; a check runs in a new container over them. It answers lines of
JSON, and all mounts are in its own mount namespace.
"""

import functools
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime_spec import compose_process, compose_spec

from agentpeft.envs.os_interaction.sandboxes.channel import is_readable
from agentpeft.envs.os_interaction.sandboxes.inside import (
    kernel,
    left_pipes,
    served_files,
    shell,
)
from agentpeft.envs.os_interaction.sandboxes.inside.children import (
    Children,
    add_descendants,
    send_signal,
)

_BASE = "/tmp"  # hidden by a tmpfs in this process's own mount namespace
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV
_READY_TIMEOUT_S, _END_TIMEOUT_S, _POLL_S = 30.0, 10.0, 0.0005
_SHELL = ["/bin/sh", "-c", f"{' '.join(shell.BASH)} 2>/dev/null; exit $?"]
"""The first process is not the shell, so that orphans have a parent that reaps them."""


class _Machine:
    """A container over an overlay on size-limited memory, one after the other (a `Host`)."""

    def __init__(self, config: dict[str, Any], children: Children) -> None:
        self._config, self._children = config, children
        self._numbers = itertools.count()
        self._name = ""
        self._outer = 0
        self.folder = ""

    def mount(self, lower: str) -> str:
        """Mounts a new writable overlay for the next container; returns its folder."""
        first_id = self._config["first_id"]
        self.folder = f"{_BASE}/{next(self._numbers)}"
        Path(self.folder).mkdir(0o755)
        size = f"size={self._config['disk_mib']}m,nr_inodes={self._config['num_inodes']},mode=755"
        kernel.mount("tmpfs", self.folder, "tmpfs", _FLAGS, size)
        for part in ("upper", "work", "root"):
            Path(self.folder, part).mkdir(0o755)
        os.chown(f"{self.folder}/upper", first_id, first_id)
        layers = f"lowerdir={lower},upperdir={self.folder}/upper,workdir={self.folder}/work"
        kernel.mount("overlay", f"{self.folder}/root", "overlay", _FLAGS, f"{layers},userxattr")
        return self.folder

    def start(self, stdin: int, output: int) -> int:
        """Starts the container with a shell as its work. The runtime stays beside it."""
        command = self._prepare(_SHELL)
        self._outer = _spawn((*command, self._name), stdin, output)
        return self._outer

    def find_init(self, pid: int) -> int:  # noqa: ARG002 (there is one container)
        """Returns the container's first process; 0 where it is not there (yet)."""
        with suppress(OSError, ValueError):
            return int(Path(f"{_BASE}/{self._name}.pid").read_text()) if self._name else 0
        return 0

    def kill_all(self) -> None:
        """Kills the container; the runtime, which waits for it, then removes what it has made."""
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        while self._outer and self._outer not in self._children.exit_codes:
            send_signal(self.find_init(self._outer), signal.SIGKILL)
            time.sleep(_POLL_S)
            if time.monotonic() > deadline_s:
                break
        self._children.kill()
        self._outer = 0
        self._forget()

    def run_sleeping(self) -> None:
        """Starts the container with nothing to do. Raises: OSError."""
        command = self._prepare(["sleep", "infinity"])
        if self._call((*command, "--detach", self._name)):
            raise OSError("the runtime has started no container")

    def execute(self, command: str, timeout_s: float, max_chars: int) -> dict[str, object]:
        """Runs a command by an `exec`; returns the fields of a `CommandResult`."""
        receive, send = os.pipe()
        file = Path(f"{_BASE}/process.json")  # an `exec` by arguments has no rlimits with crun
        file.write_text(json.dumps(compose_process(self._config, ["/bin/bash", "-c", command])))
        executed = (*self._runtime, "exec", "--process", str(file), self._name)
        deadline_s = time.monotonic() + timeout_s
        with self._children.unreaped():
            pid = _spawn(executed, _open_nothing(), send)
        os.close(send)
        os.set_blocking(receive, False)
        output, is_timeout = b"", False
        while pid not in self._children.exit_codes:
            output = _read_more(receive, output, max_chars)
            if not is_timeout and time.monotonic() > deadline_s:
                is_timeout = True
                for victim in add_descendants(_list_all_children(pid)):
                    send_signal(victim, signal.SIGKILL)
            is_readable(receive, 0.001)
        output = _read_more(receive, output, max_chars)
        os.close(receive)
        code = None if is_timeout else self._children.exit_codes.pop(pid)
        return {
            "output": output.decode("utf-8", "replace"),
            "exit_code": code,
            "is_timeout": is_timeout,
        }

    def delete(self) -> None:
        """Kills and removes the container that sleeps."""
        if self._name:
            self._call((*self._runtime, "delete", "--force", self._name))
            self._children.kill()
        self._forget()

    @property
    def _runtime(self) -> tuple[str, ...]:
        options = ("--cgroup-manager=disabled",) if self._config["way"] == "bare" else ()
        return (self._config["runtime"], "--root", f"{_BASE}/state", *options)

    def _prepare(self, arguments: list[str]) -> tuple[str, ...]:
        self._name = f"agentpeft-{os.getpid()}-{next(self._numbers)}"
        spec = compose_spec(self._config, arguments, self._name)
        Path(f"{self.folder}/config.json").write_text(json.dumps(spec))
        pid_file = f"{_BASE}/{self._name}.pid"
        return (*self._runtime, "run", "--bundle", self.folder, "--pid-file", pid_file)

    def _call(self, command: tuple[str, ...]) -> int:
        with self._children.unreaped():
            pid = _spawn(command, _open_nothing(), _open_nothing())
        while pid not in self._children.exit_codes:
            time.sleep(_POLL_S)
        return self._children.exit_codes.pop(pid)

    def _forget(self) -> None:
        Path(f"{_BASE}/{self._name}.pid").unlink(missing_ok=True)
        self._name = ""


class _Server:
    """What `RuntimeSandbox` may ask for; see `bubblewrap_helper.py`, whose order it keeps."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._image, self._guard = f"{config['folder']}/root", f"{config['folder']}/guard"
        self._max_chars = config["max_output_chars"]
        self._first_id = config["first_id"]
        self._is_shell = config["way"] != "exec"
        children = Children()
        self._machine = _Machine(config, children)
        self._pipes = left_pipes.LeftPipes()
        self._shell = shell.PersistentShell(self._machine, children, self._pipes.attend)
        self._episode, self._next = "", ""

    def serve(self) -> None:
        """Answers until standard input ends."""
        shell.serve(
            {
                "reset": self._reset,
                "run": self._run,
                "freeze": self._freeze,
                "check": self._check,
                "read": self._in_frozen(served_files.read_file),
                "stat": self._in_frozen(self._stat),
                "walk": self._in_frozen(self._walk),
            },
            afterwards={"freeze": self._start_next},
        )
        self._end()

    def _reset(self) -> None:
        if not self._next or not self._has_shell():
            self._end()
            self._start_next()
            if not self._has_shell():
                raise OSError("no shell can be started")
        _unmount(f"{_BASE}/frozen", *_layers_of(self._episode))
        self._episode, self._next = self._next, ""

    def _start_next(self) -> None:
        _unmount(*_layers_of(self._next))
        self._next = self._machine.mount(self._image)
        self._begin()

    def _begin(self) -> None:
        if self._is_shell:
            self._shell.start()
        else:
            self._machine.run_sleeping()

    def _end(self) -> None:
        if self._is_shell:
            self._shell.end()
        else:
            self._machine.delete()

    def _has_shell(self) -> bool:
        return self._run(":", _READY_TIMEOUT_S)["exit_code"] == 0

    def _run(self, command: str, timeout_s: float) -> dict[str, object]:
        if self._is_shell:
            return self._shell.run(command, timeout_s, self._max_chars)
        return self._machine.execute(command, timeout_s, self._max_chars)

    def _freeze(self) -> None:
        self._end()
        Path(f"{_BASE}/frozen").mkdir(exist_ok=True)
        layers = f"lowerdir={self._episode}/upper:{self._image},userxattr"
        kernel.mount("overlay", f"{_BASE}/frozen", "overlay", _FLAGS | kernel.MS_RDONLY, layers)

    def _check(self, command: str, timeout_s: float) -> dict[str, object]:
        self._end()
        _unmount(*_layers_of(self._next))
        self._next = ""
        folder = self._machine.mount(f"{self._guard}:{self._episode}/upper:{self._image}")
        try:
            with served_files.inside(f"{self._episode}/upper"):
                changed = served_files.walk("/")
            self._pipes.watch(f"{folder}/root", changed)
            self._begin()
            return self._run(command, timeout_s)
        finally:
            self._end()
            self._pipes.forget()
            _unmount(*_layers_of(folder))

    def _stat(self, path: str) -> served_files.Fields | None:
        fields = served_files.stat_path(path)
        return self._map_ids(fields) if fields else None

    def _walk(self, path: str) -> list[tuple[str, served_files.Fields]]:
        return [(found, self._map_ids(fields)) for found, fields in served_files.walk(path)]

    def _map_ids(self, fields: served_files.Fields) -> served_files.Fields:
        """Gives owners the numbers that they have in the container: the server is not in it."""
        return fields | {name: fields[name] - self._first_id for name in ("uid", "gid")}

    def _in_frozen(self, work: Callable[..., object]) -> Callable[..., object]:
        def work_inside(*arguments: object) -> object:
            with served_files.inside(f"{_BASE}/frozen"):
                return work(*arguments)

        return work_inside


def _layers_of(folder: str) -> tuple[str, ...]:
    return (f"{folder}/root", folder) if folder else ()


def _unmount(*paths: str) -> None:
    for path in paths:
        with suppress(OSError):
            kernel.unmount(path)


def _read_more(descriptor: int, output: bytes, max_chars: int) -> bytes:
    """Returns the output with what is there to read, without its middle where it is too long."""
    with suppress(BlockingIOError):
        while chunk := os.read(descriptor, 1 << 16):
            output += chunk
            if len(output) > 4 * max_chars:
                output = output[: 2 * max_chars] + output[-max_chars:]
    return output


def _spawn(command: tuple[str, ...], stdin: int, output: int) -> int:
    """Starts a command. Its error output is not the host's `/dev/null`.

    Of that, as of all that a container gets as standard input and output, crun makes the
    container's root the owner, who could then change its mode for the whole host.
    """
    actions = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, output, number) for number in (1, 2)]
    return os.posix_spawn(
        command[0],
        command,
        shell.ENVIRONMENT,
        file_actions=actions,
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGINT],
        setsigmask=[],
    )


def _list_all_children(pid: int) -> list[int]:
    """Returns the children of all threads of a process, of which a program in Go has several."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]


@functools.cache
def _open_nothing() -> int:
    return os.memfd_create("nothing")


def main() -> None:
    """Serves a sandbox in a mount namespace of its own, with which all mounts end."""
    config = json.loads(sys.stdin.readline())
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
        with suppress(OSError):  # crun refuses control groups of both versions at once
            kernel.unmount("/sys/fs/cgroup/unified")
        kernel.mount("tmpfs", _BASE, "tmpfs", _FLAGS, "size=8m,mode=755")
        kernel.adopt_orphans()
    except OSError as error:
        print(error, flush=True)
        return
    print("ready", flush=True)
    _Server(config).serve()


if __name__ == "__main__":
    main()
