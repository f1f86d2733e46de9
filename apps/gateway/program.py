"""Runs a user's program for an episode: a fresh process, or one of a pool of servers.

A process is told all it needs by its environment and its standard input, and is killed with all
that it has started (but for what leaves its process group) when its episode ends, or this process.
"""

import asyncio
import itertools
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self
from urllib.parse import urlsplit

import httpx

from agentpeft.envs import EnvFault, SettingsError

WORLDS_FAULT = 78
"""The exit status (EX_CONFIG) by which a program says that it could not do its work."""
_MAX_OUTPUT_BYTES = 1 << 20
_MAX_VARIABLE_BYTES = 100_000
"""Linux starts no process with a variable of more than 128 KiB."""
_BLOCK_BYTES = 1 << 16
_TAIL_CHARS = 300
_SECRET = re.compile(r"_(TOKEN|API_KEY|PASSWORD)$|SECRET", re.IGNORECASE)
"""Names of our variables that are no program's affair."""
_MAX_PAUSE_S = 4.0
_KILL_S = 5.0
"""How long a killed process may take to end."""
_WATCH = """
import os, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, 9)
    except ProcessLookupError:
        pass
"""
"""Kills what runs once nobody tells it more: a killed process ends no program itself."""


@dataclass(frozen=True)
class Ended:
    """How a program ended: what it printed, and what was wrong, "" if nothing."""

    output: str
    problem: str = ""


class FreshProcesses:
    """Starts a command for each episode."""

    pause_s = 0.0

    def __init__(self, command: str, folder: str | None, keep: Sequence[str] = ()) -> None:
        """`folder` is where it runs; `keep` are variables that are told though they are secret.

        Raises: SettingsError where there is no such program.
        """
        self._keep = frozenset(keep)
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise SettingsError(f"env_runners.agent.command {command!r}: {error}") from None
        self._folder = folder
        self._watch: int | None = None
        program = self._words[0] if self._words else ""
        place = Path(folder or ".", program) if "/" in program else program
        if not program or shutil.which(place) is None:
            raise SettingsError(f"env_runners.agent.command: there is no program {program!r}")
        if folder is not None and not Path(folder).is_dir():
            raise SettingsError(f"env_runners.agent.folder: there is no folder {folder!r}")

    async def run(self, variables: Mapping[str, str], task: str) -> Ended:
        """Runs it to its end; cancelled, it ends it. Raises: EnvFault if the world failed it.

        It has ended when its first process has, whatever else still holds its output open.
        """
        told = {n: v for n, v in os.environ.items() if n in self._keep or not _SECRET.search(n)}
        told |= variables
        host = urlsplit(variables.get("OPENAI_BASE_URL", "")).hostname or ""
        for name in ("NO_PROXY", "no_proxy"):
            told[name] = ",".join(filter(None, [told.get(name), host]))
        if len(task.encode("utf-8", "replace")) <= _MAX_VARIABLE_BYTES and "\0" not in task:
            told["AGENTPEFT_TASK"] = task
        with ExitStack() as stack:
            try:
                self._watch = _start_watch() if self._watch is None else self._watch
                shown = stack.enter_context(TemporaryFile())
                shown.write(task.encode("utf-8", "replace"))
                shown.seek(0)
                output, errors = (stack.enter_context(_Output()) for _ in range(2))
                process = await asyncio.create_subprocess_exec(
                    *self._words,
                    stdin=shown,
                    stdout=output.pipe,
                    stderr=errors.pipe,
                    cwd=self._folder,
                    env=told,
                    start_new_session=True,
                )
            except OSError as error:
                raise EnvFault(f"the program could not be started: {error}") from error
            os.write(self._watch, b"+%d\n" % process.pid)
            try:
                status = await process.wait()
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                os.write(self._watch, b"-%d\n" % process.pid)
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _KILL_S)
            printed, said = output.read_rest(), errors.read_rest()
        if status == 0:
            return Ended(printed)
        line = next(reversed(said.strip().splitlines()), "")[-_TAIL_CHARS:]
        how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
        if status == WORLDS_FAULT:
            raise EnvFault(f"the program ended with status {status}: {line}")
        return Ended(printed, f"{how}: {line}" if line else how)

    async def close(self) -> None:
        """Ends the watch."""
        if self._watch is not None:
            os.close(self._watch)
            self._watch = None


def _start_watch() -> int:
    """Starts the watch, and returns the pipe that tells it which process groups run."""
    end, pipe = os.pipe()
    command = [sys.executable, "-I", "-S", "-c", _WATCH]
    actions = [(os.POSIX_SPAWN_DUP2, end, 0)]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setpgroup=0)
    os.close(end)
    return pipe


class ServerPool:
    """Asks servers that play episodes, in turn: a POST with the variables and the task.

    A server answers 200 with what a process would print when the episode is over. 503, or no
    server at all, is the world's fault, any other answer the agent's.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = itertools.cycle(urls)
        self.pause_s = 0.0
        """How long to wait after the last fault before an episode is played again."""
        limits = httpx.Limits(max_connections=None)
        # The gateway's own limit of an episode's time ends a request
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(None), limits=limits)

    async def run(self, variables: Mapping[str, str], task: str) -> Ended:
        """Asks the next server. Raises: EnvFault if that is gone, or answers 503."""
        url = next(self._urls)
        try:
            answer = await self._client.post(url, json={**variables, "AGENTPEFT_TASK": task})
            is_gone = answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
            problem = "it answered 503" if is_gone else ""
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__} {error}"
        if problem:
            self.pause_s = min(2 * self.pause_s, _MAX_PAUSE_S) or 1.0
            raise EnvFault(f"the agent's server {url}: {problem}")
        self.pause_s = 0.0
        if answer.status_code != httpx.codes.OK:
            return Ended("", f"the server answered {answer.status_code}")
        return Ended(answer.text)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


class _Output:
    """A pipe that a program prints into, whose last bytes are kept. It never blocks."""

    def __init__(self) -> None:
        self._end, self.pipe = os.pipe()
        self._text = bytearray()

    def __enter__(self) -> Self:
        os.set_blocking(self._end, False)
        asyncio.get_running_loop().add_reader(self._end, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._end)
        os.close(self._end)
        os.close(self.pipe)

    def read_rest(self) -> str:
        """Returns the last of what was printed up to now."""
        for _ in range(_MAX_OUTPUT_BYTES // _BLOCK_BYTES):  # others may still print
            if not self._read():
                break
        return self._text.decode("utf-8", "replace")

    def _read(self) -> int:
        """Reads what there is, and returns how many bytes."""
        try:
            block = os.read(self._end, _BLOCK_BYTES)
        except BlockingIOError:
            return 0
        self._text += block
        del self._text[:-_MAX_OUTPUT_BYTES]
        return len(block)
