"""The process that holds a bubblewrap sandbox: its user and mount namespaces, overlay and shell.

`bubblewrap.py` starts one for each sandbox and speaks to it in lines of JSON. All that it makes
goes with it: mounts are in its own mount namespace, shells die with their parent. It works as the
mapped uid 0, which is nobody on the host, and the agent runs one user namespace further in.
Standard library only, and no import of what the suite's packages import.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentpeft.envs.os_interaction.sandboxes.inside import (
    kernel,
    left_pipes,
    live_processes,
    root_files,
    served_files,
    shell,
)
from agentpeft.envs.os_interaction.sandboxes.inside.children import Children, list_children

_BASE = "/tmp"  # noqa: S108 (hidden by a tmpfs in this process's own mount namespace)
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV
_ISOLATION = (  # noqa: SIM905 (as one types it)
    "--proc /proc --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try"
    " --hostname sandbox --die-with-parent --new-session --cap-drop ALL"
).split()
_NUM_IDS = 65_536
_OWN_PROCESSES = 6
_READY_TIMEOUT_S = 30.0
_CLOCK_STEP_S = 0.05
_NAMESPACE = 99
"""The descriptor of the shells' user namespace; a shell closes it."""


class _Episode:
    """Overlays on size-limited memory, and where in them shells live (a `Host`)."""

    def __init__(self, config: dict[str, Any], children: Children) -> None:
        self._config = config
        self._children = children
        self._outer = 0
        self._filter = kernel.build_filter()
        self.root = f"{_BASE}/episode/root"

    def mount(self, name: str, lower: str) -> None:
        """Mounts a writable overlay with a memory of its own at `_BASE/name/root`."""
        base = f"{_BASE}/{name}"
        disk_mib, num_inodes = self._config["disk_mib"], self._config["num_inodes"]
        options = f"size={disk_mib}m,nr_inodes={num_inodes},mode=755"
        os.makedirs(base, exist_ok=True)
        kernel.mount("tmpfs", base, "tmpfs", _FLAGS, options)
        for folder in ("upper", "work", "root"):
            os.mkdir(f"{base}/{folder}", 0o755)
        layers = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work,userxattr"
        kernel.mount("overlay", f"{base}/root", "overlay", _FLAGS, layers)
        self.root = f"{base}/root"

    def start(self, stdin: int, output: int) -> int:
        with _input("seccomp", self._filter) as program:
            options = "\0".join(self._compose_options(program)).encode()
            with _input("options", options) as listed:
                command = (self._config["bwrap"], "--args", str(listed), "--", *shell.BASH)
                self._outer = shell.spawn(command, stdin, output)
        return self._outer

    @property
    def init(self) -> int:
        """The first process of the shell's namespaces; 0 where there is no shell."""
        return self.find_init(self._outer)

    def find_init(self, pid: int) -> int:
        return next(iter(list_children(pid)), 0)

    def kill_all(self) -> None:
        if self._outer:  # the namespace's first process dies with it, and all below with that
            self._children.kill()
        self._outer = 0

    def _compose_options(self, program: int) -> list[str]:
        """Returns bwrap's options, which are not to be seen in the list of processes."""
        options = ["--userns", str(_NAMESPACE)]
        options += ["--bind", self.root, "/", "--bind", f"{self.root}/dev", "/dev"]
        for device in root_files.DEVICES:
            options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
        options += _ISOLATION
        for capability in kernel.CAPABILITIES.split():
            options += ["--cap-add", f"CAP_{capability}"]
        if self._filter:
            options += ["--seccomp", str(program)]
        return [*options, "--chdir", "/"]


@contextmanager
def _input(name: str, content: bytes) -> Iterator[int]:
    """Yields a descriptor from which a child can read `content`."""
    descriptor = os.memfd_create(name)
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.set_inheritable(descriptor, True)
        yield descriptor
    finally:
        os.close(descriptor)


class _Server:
    """The operations that `bubblewrap.py` may ask for."""

    def __init__(self, config: dict[str, Any], image: str, guard: str) -> None:
        self._image = image
        self._guard = guard
        self._max_chars = config["max_output_chars"]
        children = Children()
        self._episode = _Episode(config, children)
        self._pipes = left_pipes.LeftPipes()
        self._shell = shell.PersistentShell(self._episode, children, self._pipes.attend)
        self._is_next_started = False
        self._started_s = 0.0
        self._processes = live_processes.EpisodeProcesses(
            lambda: self._episode.init,
            lambda: live_processes.list_namespace(self._episode.init),
            lambda: live_processes.stop_namespace(self._episode.init),
        )
        self._placeholders = live_processes.Placeholders(
            lambda work: live_processes.call_in_namespaces(self._episode.init, work)
        )

    def serve(self) -> None:
        shell.serve(
            {
                "reset": self._reset,
                "run": self._run,
                "freeze": self._freeze,
                "check": self._check,
                "read": _in_tree("frozen", served_files.read_file),
                "stat": _in_tree("frozen", served_files.stat_path),
                "walk": _in_tree("frozen", served_files.walk),
                "list_changes": _in_tree("episode/root", self._list_changes),
                "apply_changes": self._apply_changes,
                "stop": self._processes.stop,
                "resume": self._processes.resume,
                "list_processes": self._processes.describe,
                "update_placeholders": self._placeholders.update,
            },
            afterwards={"freeze": self._start_next},
        )
        self._shell.end()  # a bwrap that is only starting would outlive this process

    def _reset(self) -> None:
        self._processes.forget()
        self._pipes.forget()
        if not self._is_next_started or not self._has_shell():
            self._shell.end()
            self._mount_next()
            if not self._has_shell():
                raise OSError("no shell can be started")
        self._is_next_started = False
        # The next episode's tmpfs takes the place of this one's, whose memory is freed with it.
        _unmount_if_there("check/root", "check", "frozen", "episode/root", "episode")
        os.makedirs(f"{_BASE}/episode", exist_ok=True)
        kernel.mount(f"{_BASE}/next", f"{_BASE}/episode", "none", kernel.MS_MOVE)
        self._episode.root = f"{_BASE}/episode/root"

    def _start_next(self) -> None:
        """Starts the next episode's shell while the last one's files are read."""
        with suppress(OSError):  # `reset` then sees to it
            self._mount_next()
            self._shell.start()
            self._is_next_started = True

    def _mount_next(self) -> None:
        _unmount_if_there("next/root", "next")
        self._started_s = time.time() - _CLOCK_STEP_S
        self._episode.mount("next", self._image)

    def _has_shell(self) -> bool:
        """Returns whether a shell answers whose bubblewrap is alive, by which it is killed."""
        return self._run(":", _READY_TIMEOUT_S)["exit_code"] == 0 and self._episode.init > 0

    def _run(self, command: str, timeout_s: float) -> dict[str, object]:
        return self._shell.run(command, timeout_s, self._max_chars)

    def _freeze(self) -> None:
        self._shell.end()
        # The same layers again, read-only: from here on nothing changes them.
        _unmount_if_there("episode/root", "frozen")
        os.makedirs(f"{_BASE}/frozen", exist_ok=True)
        layers = f"lowerdir={_BASE}/episode/upper:{self._image},userxattr"
        kernel.mount("overlay", f"{_BASE}/frozen", "overlay", _FLAGS | kernel.MS_RDONLY, layers)

    def _check(self, command: str, script: str, timeout_s: float) -> dict[str, object]:
        self._shell.end()
        self._is_next_started = False
        _unmount_if_there("check/root", "check")  # of a worker that was killed
        try:
            # The guard, above the episode's files, hides programs and libraries that it replaced.
            self._episode.mount("check", f"{self._guard}:{_BASE}/episode/upper:{self._image}")
            with served_files.inside(f"{_BASE}/episode/upper"):
                changed = served_files.walk("/")
            paths = [path for path, _ in changed if not path.startswith("/dev/")]
            with served_files.inside(f"{_BASE}/check/root"):
                links = [path for path in paths if os.path.islink(path)]
                why = served_files.remove_traps(links, paths, root_files.START_FILES, script)
            if why:
                return {"output": why, "exit_code": None}
            self._pipes.watch(f"{_BASE}/check/root", changed)
            return self._run(command, timeout_s)
        finally:
            self._shell.end()
            self._pipes.forget()
            _unmount_if_there("check/root", "check")  # or the next episode pays for its files

    def _apply_changes(self, before: served_files.Fields, *how: Any) -> str:
        root = f"{_BASE}/episode/root"
        with served_files.inside(root):
            why = served_files.apply_changes(before, *how)
        self._pipes.watch(root, [change[:2] for change in before["changes"]])
        return why

    def _list_changes(self, max_bytes: int) -> dict[str, object]:
        return served_files.list_changes(self._started_s, max_bytes)


def _in_tree(name: str, work: Callable[..., object]) -> Callable[..., object]:
    def work_inside(*arguments: object) -> object:
        with served_files.inside(f"{_BASE}/{name}"):
            return work(*arguments)

    return work_inside


def _unmount_if_there(*names: str) -> None:
    for name in names:
        with suppress(OSError):
            kernel.unmount(f"{_BASE}/{name}")


def main() -> None:
    """Enters the namespaces with the parent's help, and serves until standard input ends."""
    config = json.loads(sys.stdin.readline())
    config["cgroups"] = list(map(_renumber, config.get("cgroups", ())))
    try:
        if config["first_owner"]:
            kernel.let_own_namespaces(config["first_owner"] + os.getpid())
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        folder = os.open(config["folder"], os.O_RDONLY | os.O_DIRECTORY)  # as who we still are
        _tell("unshared")
        if sys.stdin.readline() != "mapped\n":
            return
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        kernel.set_dumpable(True)
        kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
        if "tar" in config:
            root_files.unpack(folder, config["tar"])
            shell.name_localhost("root/etc")
            _tell("ready")
            return
        kernel.mount("tmpfs", _BASE, "tmpfs", _FLAGS, "size=1m")
        _make_inner_namespace(config["num_processes"])
        os.mkdir(f"{_BASE}/probe")
        _need_overlays()
    except OSError as error:
        _tell(str(error))
        return
    layers = f"/proc/self/fd/{folder}"
    _tell("ready")
    _supervise(config, f"{layers}/root", f"{layers}/guard")


def _renumber(descriptor: int) -> int:
    """Returns a descriptor's copy with a low number: the parent's may be `_NAMESPACE`."""
    copy = os.dup(descriptor)
    os.close(descriptor)
    return copy


def _make_inner_namespace(num_processes: int) -> None:
    """Opens a user namespace for shells, without namespaces inside of it.

    The limits at its making are those of all processes in it together.
    """
    for name, limit in kernel.NAMESPACE_LIMITS.items():
        with suppress(FileNotFoundError):  # a kernel without it
            Path(f"/proc/sys/user/{name}").write_text(str(limit))
    is_made, tell = os.pipe()
    wait, is_mapped = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(is_mapped)
        limits = {"NPROC": num_processes + _OWN_PROCESSES, **kernel.USER_LIMITS}
        for name, limit in limits.items():
            number = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(number)[1]
            value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(number, (value, value))
        kernel.unshare(kernel.CLONE_NEWUSER)
        # Within the new namespace, so that it counts for the shells' and not for ours.
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        os.write(tell, b"1")
        os.read(wait, 1)
        os._exit(0)
    os.close(tell)
    if not os.read(is_made, 1):
        raise OSError("no second user namespace can be made")
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 0 {_NUM_IDS}")
    # The descriptor keeps the namespace alive after its only process, the child, has ended.
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    os.dup2(namespace, _NAMESPACE, inheritable=True)
    for descriptor in (is_made, wait, is_mapped, namespace):
        os.close(descriptor)
    os.waitpid(pid, 0)


def _supervise(config: dict[str, Any], image: str, guard: str) -> None:
    """Runs a worker in the sandbox's cgroups; restarts it, with its mounts, if memory ran out."""
    while True:
        worker = os.fork()
        if not worker:
            kernel.adopt_orphans()
            kernel.limit_descriptors()
            try:
                for descriptor in config["cgroups"]:
                    os.write(descriptor, b"0")
                    os.close(descriptor)
            except OSError as error:
                _tell(f"a sandbox cannot enter its control groups: {error}")
                os._exit(0)
            _Server(config, image, guard).serve()
            os._exit(0)
        if not os.waitpid(worker, 0)[1]:
            return
        _tell('{"id": null}')  # answers the request under which the worker was killed


def _tell(line: str) -> None:
    sys.stdout.write(line.replace("\n", " ") + "\n")
    sys.stdout.flush()


def _need_overlays() -> None:
    """Raises: OSError if memory cannot hold what overlays note at files."""
    try:
        os.setxattr(f"{_BASE}/probe", "user.overlay.opaque", b"y")
    except OSError as error:
        raise OSError(f"tmpfs has no user xattrs ({error}): Linux 6.6 or later") from None
