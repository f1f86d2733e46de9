"""The process that holds a bubblewrap sandbox: its user and mount namespaces, overlay and shell.

`bubblewrap.py` starts one for each sandbox and speaks to it in lines of JSON. All that it makes
goes with it: mounts are in its own mount namespace, shells die with their parent. It works as the
mapped uid 0, which is nobody on the host, and the agent runs one user namespace further in.
Standard library only, and no import of what the suite's packages import.
"""

import base64
import json
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentpeft.envs.os_interaction.sandboxes import kernel, root_files
from agentpeft.envs.os_interaction.sandboxes.shell import (
    BASH,
    Children,
    PersistentShell,
    serve,
    spawn,
)

_BASE = "/tmp"  # noqa: S108 (hidden by a tmpfs in this process's own mount namespace)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ISOLATION = (  # noqa: SIM905 (as one types it)
    "--proc /proc --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try"
    " --hostname sandbox --die-with-parent --new-session --cap-drop ALL"
).split()
_CAPABILITIES = (  # noqa: SIM905
    "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETFCAP SETPCAP SYS_CHROOT"
    " NET_BIND_SERVICE AUDIT_WRITE"
).split()
_NUM_IDS = 65_536
_OWN_PROCESSES = 6
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
        kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        for part in ("upper", "work", "root"):
            os.mkdir(f"{base}/{part}", 0o755)
        layers = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work,userxattr"
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("overlay", f"{base}/root", "overlay", flags, layers)
        self.root = f"{base}/root"

    def start(self, stdin: int, output: int) -> int:
        """See `Host.start`."""
        program = os.memfd_create("seccomp")
        os.write(program, self._filter)
        os.lseek(program, 0, os.SEEK_SET)
        os.set_inheritable(program, True)
        try:
            self._outer = spawn(self._compose_command(program), stdin, output)
        finally:
            os.close(program)
        return self._outer

    def find_init(self, pid: int) -> int:
        """See `Host.find_init`."""
        with suppress(OSError, IndexError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return 0

    def kill_all(self) -> None:
        """See `Host.kill_all`."""
        if self._outer and self._outer not in self._children.exit_codes:
            with suppress(ProcessLookupError):
                os.kill(self._outer, signal.SIGKILL)  # its child dies with it, and all below
        self._children.wait_for_all()
        self._outer = 0

    def _compose_command(self, program: int) -> tuple[str, ...]:
        command = [self._config["bwrap"], "--userns", str(_NAMESPACE)]
        command += ["--bind", self.root, "/", "--bind", f"{self.root}/dev", "/dev"]
        for device in _DEVICES:
            command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
        command += _ISOLATION
        for capability in _CAPABILITIES:
            command += ["--cap-add", f"CAP_{capability}"]
        if self._filter:
            command += ["--seccomp", str(program)]
        return (*command, "--chdir", "/", "--", *BASH)


class _Server:
    """Answers the requests of `bubblewrap.py`."""

    def __init__(self, config: dict[str, Any], image: str, guard: str) -> None:
        self._image = image
        self._guard = guard
        self._max_chars = config["max_output_chars"]
        children = Children()
        self._episode = _Episode(config, children)
        self._shell = PersistentShell(self._episode, children)
        self._operations: dict[str, Callable[..., object]] = {
            "reset": self._reset,
            "run": self._run,
            "freeze": self._freeze,
            "check": self._check,
            "stat": self._stat,
            "read": self._read,
            "walk": self._walk,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does one request; what the kernel refuses is an `error`."""
        try:
            return {"value": self._operations[request["operation"]](*request["arguments"])}
        except OSError as error:
            return {"error": str(error)}

    def _reset(self) -> None:
        self._shell.end()
        for name in ("frozen", "episode/root", "episode"):
            _unmount_if_there(f"{_BASE}/{name}")
        self._episode.mount("episode", self._image)

    def _run(self, command: str, timeout_s: float) -> dict[str, object]:
        return self._shell.run(command, timeout_s, self._max_chars)

    def _freeze(self) -> None:
        self._shell.end()
        _unmount_if_there(f"{_BASE}/episode/root")
        os.makedirs(f"{_BASE}/frozen", exist_ok=True)
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_RDONLY
        layers = f"lowerdir={_BASE}/episode/upper:{self._image},userxattr"
        kernel.mount("overlay", f"{_BASE}/frozen", "overlay", flags, layers)

    def _check(self, command: str, timeout_s: float) -> dict[str, object]:
        lower = f"{self._guard}:{_BASE}/episode/upper:{self._image}"
        for name in ("check/root", "check"):
            _unmount_if_there(f"{_BASE}/{name}")
        self._episode.mount("check", lower)
        try:
            return self._shell.run(command, timeout_s, self._max_chars)
        finally:
            self._shell.end()
            for name in ("check/root", "check"):
                kernel.unmount(f"{_BASE}/{name}")

    def _stat(self, path: str) -> dict[str, object] | None:
        with _inside(f"{_BASE}/frozen"), suppress(OSError, ValueError):
            return _describe(path)
        return None

    def _read(self, path: str, max_bytes: int) -> str | None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _inside(f"{_BASE}/frozen"), suppress(OSError, ValueError):
            descriptor = os.open(path, flags)
            with open(descriptor, "rb") as file:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return base64.b64encode(file.read(max_bytes)).decode()
        return None

    def _walk(self, path: str) -> list[tuple[str, dict[str, object]]]:
        found = []
        with _inside(f"{_BASE}/frozen"):
            pending = [path]
            while pending:
                current = pending.pop()
                with suppress(OSError, ValueError):
                    found.append((current, _describe(current)))
                    if found[-1][1]["kind"] == "directory":
                        names = sorted(os.listdir(current), reverse=True)
                        pending += [f"{current.rstrip('/')}/{name}" for name in names]
        return found


def _describe(path: str) -> dict[str, object]:
    """Returns the fields of a `FileStat`. Raises: OSError."""
    status = os.lstat(path)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    return {
        "kind": kind,
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "size": status.st_size,
        "target": os.readlink(path) if kind == "symlink" else "",
        "mtime": status.st_mtime,
    }


@contextmanager
def _inside(root: str) -> Iterator[None]:
    """Makes paths mean what they mean in a tree, with the kernel's own rules for symlinks."""
    outside = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    os.chroot(root)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(outside)
        os.chroot(".")
        os.close(outside)


def _unmount_if_there(path: str) -> None:
    with suppress(OSError):
        kernel.unmount(path)


def main() -> None:
    """Enters the namespaces with the parent's help, and serves until standard input ends."""
    config = json.loads(sys.stdin.readline())
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        folder = os.open(config["folder"], os.O_RDONLY | os.O_DIRECTORY)  # as who we still are
        _tell("unshared")
        if sys.stdin.readline() != "mapped\n":
            return
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        kernel.own_proc_files()
        kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
        if "tar" in config:
            root_files.unpack(folder, config["tar"])
            _tell("unpacked")
            return
        kernel.mount("tmpfs", _BASE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m")
        _make_inner_namespace(config["num_processes"])
        os.mkdir(f"{_BASE}/probe")
        _need_overlays()
    except OSError as error:
        _tell(str(error))
        return
    layers = f"/proc/self/fd/{folder}"
    _supervise(config, f"{layers}/root", f"{layers}/guard")


def _make_inner_namespace(num_processes: int) -> None:
    """Opens a user namespace for shells: as many processes in all, no namespaces inside of it."""
    is_made, tell = os.pipe()
    wait, is_mapped = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(is_mapped)
        resource.setrlimit(resource.RLIMIT_NPROC, (num_processes + _OWN_PROCESSES,) * 2)
        kernel.unshare(kernel.CLONE_NEWUSER)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        os.write(tell, b"1")
        os.read(wait, 1)
        os._exit(0)
    os.close(tell)
    if not os.read(is_made, 1):
        raise OSError("no second user namespace can be made")
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 0 {_NUM_IDS}")
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    os.dup2(namespace, _NAMESPACE, inheritable=True)
    for descriptor in (is_made, wait, is_mapped, namespace):
        os.close(descriptor)
    os.waitpid(pid, 0)


def _supervise(config: dict[str, Any], image: str, guard: str) -> None:
    """Keeps a worker in the sandbox's cgroups, and the mounts where it is killed for memory."""
    while True:
        worker = os.fork()
        if not worker:
            kernel.adopt_orphans()
            for descriptor in config["cgroups"]:
                os.write(descriptor, b"0")
                os.close(descriptor)
            serve(_Server(config, image, guard).answer)
            os._exit(0)
        if not os.waitpid(worker, 0)[1]:
            return
        _tell('{"id": null}')


def _tell(line: str) -> None:
    sys.stdout.write(line.replace("\n", " ") + "\n")
    sys.stdout.flush()


def _need_overlays() -> None:
    """Raises: OSError if memory cannot hold what overlays note at files."""
    try:
        os.setxattr(f"{_BASE}/probe", "user.overlay.opaque", b"y")
    except OSError as error:
        raise OSError(f"tmpfs has no user xattrs ({error}): Linux 6.6 or later") from None
