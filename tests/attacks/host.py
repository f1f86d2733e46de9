"""What attacks may not reach on the host: a file, a process, sockets, settings; loopback only."""

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

MARK = "agentpeft-attack"
"""Part of the name of every file that an attack makes."""
_SETTINGS = (
    "kernel/core_pattern",
    "kernel/hostname",
    "kernel/modprobe",
    "kernel/sysrq",
    "kernel/yama/ptrace_scope",
    "vm/overcommit_memory",
    "net/ipv4/ip_forward",
    "fs/suid_dumpable",
)
_PUBLIC_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/etc", "/", "/srv", "/root")


class Host:
    """Makes what attacks look for, and says what has become of it; `close` it."""

    def __init__(self) -> None:
        self.word = f"sesame{secrets.token_hex(6)}"
        self.folder = Path(tempfile.mkdtemp(prefix="agentpeft-host-"))
        self.folder.chmod(0o755)
        self.secret = self.folder / "secret"
        self.secret.write_text(self.word)
        self.secret.chmod(0o666)
        self.victim = subprocess.Popen(["sleep", "3600"])
        self._tcp = socket.create_server(("0.0.0.0", 0))
        self._abstract = socket.socket(socket.AF_UNIX)
        self._abstract.bind(f"\0{MARK}-{os.getpid()}-{self.word[-6:]}")
        self._abstract.listen()
        for server in (self._tcp, self._abstract):
            server.setblocking(False)
        self._settings = _read_settings()

    def fill_in(self, text: str) -> str:
        """Returns an attack's text with the host's own in place of the words between `@`."""
        places = {
            "@secret@": str(self.secret),
            "@victim@": str(self.victim.pid),
            "@port@": str(self._tcp.getsockname()[1]),
            "@abstract@": str(self._abstract.getsockname()[1:].decode()),
            "@address@": socket.gethostbyname(socket.gethostname()),
            "@mark@": MARK,
        }
        for word, value in places.items():
            text = text.replace(word, value)
        return text

    def find_problems(self) -> list[str]:
        """Returns what is not as it was."""
        problems = []
        if self.secret.read_text() != self.word:
            problems.append("a file of the host was written")
            self.secret.write_text(self.word)
        if self.victim.poll() is not None:
            problems.append("a process of the host was ended")
            self.victim = subprocess.Popen(["sleep", "3600"])
        problems += [f"a connection to the host's {s.family.name}" for s in self._connected()]
        if (settings := _read_settings()) != self._settings:
            changed = [name for name in settings if settings[name] != self._settings[name]]
            problems.append(f"kernel settings were changed: {changed}")
        for folder in _PUBLIC_FOLDERS:
            problems += [f"left on the host: {path}" for path in Path(folder).glob(f"{MARK}*")]
        return problems

    def close(self) -> None:
        """Ends the process and the sockets, and removes the files."""
        self.victim.kill()
        self.victim.wait()
        self._tcp.close()
        self._abstract.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _connected(self) -> list[socket.socket]:
        connected = []
        for server in (self._tcp, self._abstract):
            try:
                server.accept()[0].close()
            except BlockingIOError:
                continue
            connected.append(server)
        return connected


def can_watch_files() -> bool:
    """Returns whether this user may still have an inotify instance, of which users have few."""
    descriptor = ctypes.CDLL(None, use_errno=True).inotify_init1(0)
    if descriptor < 0:
        return False
    os.close(descriptor)
    return True


def _read_settings() -> dict[str, str]:
    found = {}
    for name in _SETTINGS:
        path = Path("/proc/sys") / name
        if path.exists():
            found[name] = path.read_text()
    return found
