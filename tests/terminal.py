"""A pseudo-terminal, as the tests of what a person sees and types need it."""

import codecs
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

CLI = [sys.executable, "-m", "agentpeft.launch.cli"]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def start_interruptible(command, **options):
    """Starts a command that Ctrl-C ends, also where pytest is a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, **options)
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt(process):
    """Sends SIGINT until a process ends: one that comes as a read begins can be missed."""
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10.0)


class Terminal:
    """A command on a terminal, but for its standard error if `errors` names a file."""

    def __init__(self, *words, num_lines=60, num_columns=120, errors=None):
        self.owner, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (num_lines, num_columns))
        sizes = {"LINES", "COLUMNS"}  # another terminal's, which pytest's workers may have
        env = {name: value for name, value in os.environ.items() if name not in sizes}
        env |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
        with Path(os.devnull if errors is None else errors).open("w") as file:
            ends = {"stdin": self.theirs, "stdout": self.theirs}
            ends["stderr"] = self.theirs if errors is None else file
            command = [*CLI, *words]
            self.process = start_interruptible(command, env=env, start_new_session=True, **ends)
        os.close(self.theirs)
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read_until(self, text, limit_s=60.0, count=1):
        """Reads until a text was shown so often, or to the end for None; returns what was shown."""
        deadline_s = time.monotonic() + limit_s
        while text is None or self.shown.count(text) < count:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self.raw[-4000:]!r}"
            if not select.select([self.owner], [], [], 1.0)[0]:
                continue
            try:
                chunk = os.read(self.owner, 65536)
            except OSError:  # the other end is closed
                break
            self.raw += self._decoder.decode(chunk)
        return self.shown

    def type(self, text):
        """Types a text."""
        os.write(self.owner, text.encode())

    def interrupt(self):
        """Sends what the kernel makes of Ctrl-C where the terminal is the session's own."""
        interrupt(self.process)

    @property
    def shown(self):
        """What was shown, without colours and movements."""
        return ESCAPES.sub("", self.raw)

    def close(self):
        """Ends the command; returns its exit status."""
        self.process.kill()
        os.close(self.owner)
        return self.process.wait()
