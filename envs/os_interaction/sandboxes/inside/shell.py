"""The one shell of an episode: `PersistentShell`, and how a process serves it.

Standard library only (Python 3.9), since it also runs inside of a container. Nothing here guards a
verdict: an agent may fool its own shell.
"""

from __future__ import annotations

import functools
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from agentpeft.envs.os_interaction.sandboxes.inside.children import (
    Children,
    add_descendants,
    list_children,
    send_signal,
)

BASH = ("/bin/bash", "--norc", "--noprofile", "+m", "-i")
ENVIRONMENT = {
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "INPUTRC": "/dev/null",
}
"""`INPUTRC` keeps an episode's `~/.inputrc` from rewriting the commands of its checks. bash reads
it before its first line, which unsets it. (With `--noediting`, bash 5.2 crashes on `set -o vi`.)"""
_PREAMBLE = (
    b"unset INPUTRC; set +o history +H; PS1= PS2= PS4='+ '; exec 200>&1 99>&-; cd ~ || cd /\n"
)
_CHUNK_BYTES = 1 << 16
"""All that a pipe holds."""
_FREE_BYTES = 1 << 20
_MARKER_BYTES = 64
_EDITED = re.compile(rb"[^\n -~]|[!'\\]")
"""Bytes that bash would edit, expand as history, or take for the end of a quotation."""
_HALF_CHARACTER = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that stand for no byte."""
_TERMINAL_NOTE = re.compile(r"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: .*\n", re.MULTILINE)
"""The note of an interactive bash without a terminal when a child dies of a signal."""
_GRACE_S = 1.5
_ROUND_S = 0.05
_MAX_WAIT_S = 60.0


class Host(Protocol):
    """Starts shells, and ends all that they have started."""

    def start(self, stdin: int, output: int) -> int:
        """Starts a shell on two descriptors and returns a child that lives as long as it."""

    def find_init(self, pid: int) -> int:
        """Returns the process that is the parent of the shell and of orphans."""

    def kill_all(self) -> None:
        """Kills the episode's processes, and returns once they are gone."""


class PersistentShell:
    """Runs commands in one bash, which is restored after a command that hung or ended it."""

    def __init__(
        self, host: Host, children: Children, attend: Callable[[], float] = lambda: _MAX_WAIT_S
    ) -> None:
        """`attend` is called while a command runs, and says in how many seconds again."""
        self._host = host
        self._children = children
        self._attend = attend
        self._pid = 0
        self._descriptors: list[int] = []
        self._buffer = b""

    def run(self, command: str, timeout_s: float, max_chars: int) -> dict[str, object]:
        """Returns the fields of a `CommandResult`."""
        nonce = os.urandom(12).hex()
        output = _TwoEnds(max_chars)
        if not self._pid:
            self.start()
        before = self._list_jobs()[1]
        deadline_s = time.monotonic() + timeout_s
        lines = _quote_command(command) + _mark_end(nonce)
        pattern = re.compile(b"\x1e" + nonce.encode() + b" ([0-9]{1,3})\x1e")
        exit_code = self._read(lines, output, pattern, deadline_s)
        is_timeout = exit_code is None and self._children.exit_codes.get(self._pid) is None
        if is_timeout and self._interrupt(before, output, pattern):
            return {"output": output.cut(), "exit_code": None, "is_timeout": True}
        if exit_code is not None:
            return {"output": output.cut(), "exit_code": exit_code}
        exit_code = None if is_timeout else self._children.exit_codes.get(self._pid)
        self.end()
        result = {"output": output.cut(), "exit_code": exit_code}
        return {**result, "is_timeout": is_timeout, "is_new_shell": True}

    def end(self) -> None:
        """Kills the shell and all that it has started; the next command starts another one."""
        self._host.kill_all()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        self._pid = 0
        self._buffer = b""

    def start(self) -> None:
        """Starts the shell, and does not wait until it can take commands. Raises: OSError."""
        stdin, self._stdin = os.pipe()
        self._output, output = os.pipe()
        self._descriptors = [self._stdin, self._output]
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._output, False)
        try:
            with self._children.unreaped():  # it may end at once
                self._pid = self._host.start(stdin, output)
                self._pidfd = os.pidfd_open(self._pid)
            self._descriptors.append(self._pidfd)
        except OSError:
            self.end()
            raise
        finally:
            os.close(stdin)
            os.close(output)
        self._write(_PREAMBLE)

    def _read(
        self, lines: bytes, output: _TwoEnds, pattern: re.Pattern[bytes], deadline_s: float
    ) -> int | None:
        """Feeds lines and takes output until the end mark, the shell's end or the deadline."""
        poll = select.poll()  # unlike `select.select`, for descriptors of any number
        for descriptor in (self._output, self._pidfd):
            poll.register(descriptor, select.POLLIN)
        if lines:
            poll.register(self._stdin, select.POLLOUT)
        while (left_s := deadline_s - time.monotonic()) > 0:
            wait_s = min(left_s, self._attend())
            ready = {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}
            if self._stdin in ready:
                lines = lines[self._write(lines) :]
                if not lines:
                    poll.unregister(self._stdin)
            chunk = self._take_chunk() if self._output in ready else b""
            # A mark may be split between chunks, so as many bytes as it has are held back.
            self._buffer += chunk
            if match := pattern.search(self._buffer):
                output.add(self._buffer[: match.start()])
                self._buffer = self._buffer[match.end() :]
                return int(match[1])
            output.add(self._buffer[:-_MARKER_BYTES])
            self._buffer = self._buffer[-_MARKER_BYTES:]
            if self._pidfd in ready and not chunk:
                self._children.reap()
                break
            if output.num_bytes > _FREE_BYTES:
                time.sleep(0.001)  # who floods waits, instead of a processor being lost to reading
        output.add(self._buffer)
        self._buffer = b""
        return None

    def _write(self, lines: bytes) -> int:
        try:
            return os.write(self._stdin, lines[:_CHUNK_BYTES])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(lines)

    def _take_chunk(self) -> bytes:
        try:
            return os.read(self._output, _CHUNK_BYTES)
        except BlockingIOError:
            return b""

    def _interrupt(self, before: list[int], output: _TwoEnds, pattern: re.Pattern[bytes]) -> bool:
        """Kills a command with its children; returns whether the shell is back.

        As with Ctrl-C: bash gives a command up if its child dies of the same SIGINT, so it comes
        first; who ignores it is killed, again and again if the command starts others.
        """
        number, is_back = signal.SIGINT, False
        grace_s = time.monotonic() + _GRACE_S
        while time.monotonic() < grace_s and self._pid not in self._children.exit_codes:
            shell, jobs = self._list_jobs()
            victims = add_descendants([pid for pid in jobs if pid not in before])
            if is_back and not victims:
                output.add(self._buffer + self._take_chunk())  # said after the shell was back
                self._buffer = b""
                return True
            if not is_back:
                send_signal(shell, signal.SIGINT)
            for pid in victims:
                send_signal(pid, number)
            if not is_back:
                deadline_s = time.monotonic() + _ROUND_S
                is_back = self._read(b"", output, pattern, deadline_s) is not None
            number = signal.SIGKILL
        return False

    def _list_jobs(self) -> tuple[int, list[int]]:
        """Returns the shell, and its children and orphans."""
        shell, *orphans = list_children(self._host.find_init(self._pid)) or [0]
        return shell, [*orphans, *list_children(shell)]


class _TwoEnds:
    """The beginning and the end of a stream; the middle is only counted."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._max_bytes = 2 * max_chars
        self._head = bytearray()
        self._tail = bytearray()
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        room = self._max_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 4 * self._max_bytes:
            del self._tail[: -self._max_bytes]

    def cut(self) -> str:
        """Returns the text, at most `max_chars` and a note long."""
        whole = bytes(self._head + self._tail[-self._max_bytes :])
        is_whole = len(whole) == self.num_bytes
        text = whole.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        text = _TERMINAL_NOTE.sub("", text)
        if is_whole and len(text) <= self._max_chars:
            return text
        start = text[: (self._max_chars + 1) // 2]
        end = text[len(text) - self._max_chars // 2 :]
        left_out = self.num_bytes - len((start + end).encode())
        return f"{start}\n[... {max(left_out, 1)} bytes left out ...]\n{end}"


def _quote_command(command: str) -> bytes:
    """Returns the lines that run a command, even if the shell's descriptors were changed.

    An interactive bash edits the lines that it reads: a tab completes words, other control
    characters and bytes delete, search or quote. So only printable ASCII is sent as it is.
    """
    text = _HALF_CHARACTER.sub("?", command.replace("\0", ""))
    data = text.encode("utf-8", "surrogateescape")
    quoted = _EDITED.sub(lambda match: b"\\%03o" % match[0][0], data)
    return b"\\builtin eval -- $'%b' </dev/null >&200 2>&200 200>&-\n" % quoted


def _mark_end(nonce: str) -> bytes:
    return f"\\builtin printf '\\036%s %s\\036' {nonce} \"$?\" >&200\n".encode()


def spawn(command: tuple[str, ...], stdin: int, output: int) -> int:
    """Starts a command, to be killed first if memory runs out, without its stderr."""
    score = "/proc/self/oom_score_adj"
    _write_text(score, "1000")
    try:
        return os.posix_spawn(
            command[0],
            command,
            ENVIRONMENT,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, _open_null(), 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT],
            setsigmask=[],
        )
    finally:
        _write_text(score, "0")


@functools.cache
def _open_null() -> int:
    return os.open(os.devnull, os.O_WRONLY)  # once: in a container an agent can put a pipe there


def name_localhost(etc: str) -> None:
    """Writes `hosts` in a folder, where an image has none or docker has emptied it."""
    with suppress(OSError):
        file = os.open(f"{etc}/hosts", os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o644)
        try:
            if not os.fstat(file).st_size:
                os.write(file, b"127.0.0.1 localhost sandbox\n")
        finally:
            os.close(file)


def _write_text(path: str, text: str) -> None:
    with suppress(OSError), open(path, "w") as file:
        file.write(text)


def serve(
    operations: dict[str, Callable[..., object]],
    afterwards: dict[str, Callable[[], None]] | None = None,
) -> None:
    """Answers requests, a line of JSON each, from standard input until it ends.

    `afterwards` has what is done once an operation has been answered.
    """
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"id": request["id"]}
        try:
            answer["value"] = operations[request["operation"]](*request["arguments"])
        except OSError as error:
            answer["error"] = str(error)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if afterwards and request["operation"] in afterwards:
            afterwards[request["operation"]]()
