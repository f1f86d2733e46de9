"""Runs a user's program for an episode: a fresh process, or one of a pool of servers.

A process is told all it needs by its environment and its standard input, and is killed with all
that it has started (but for what leaves its process group) when its episode ends, or this process.
"""

import asyncio
import itertools
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from agentpeft.envs import EnvFault, SettingsError

WORLDS_FAULT = 78
"""The exit status (EX_CONFIG) by which a program says that it could not do its work."""
_MAX_OUTPUT_BYTES = 1 << 20
_MAX_VARIABLE_BYTES = 100_000
"""Linux starts no process with a variable of more than 128 KiB."""
_TAIL_CHARS = 300
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

    def __init__(self, command: str, folder: str | None) -> None:
        """`folder` is where it runs. Raises: SettingsError where there is no such program."""
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
        """Runs it to its end; cancelled, it ends it. Raises: EnvFault if the world failed it."""
        told = {**os.environ, **variables}
        if len(task.encode()) <= _MAX_VARIABLE_BYTES and "\0" not in task:
            told["AGENTPEFT_TASK"] = task
        self._watch = _start_watch() if self._watch is None else self._watch
        process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._folder,
            env=told,
            start_new_session=True,
        )
        os.write(self._watch, b"+%d\n" % process.pid)
        try:
            output, errors, _ = await asyncio.gather(
                _read_end(process.stdout), _read_end(process.stderr), _tell(process.stdin, task)
            )
            status = await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            os.write(self._watch, b"-%d\n" % process.pid)
            await asyncio.shield(process.wait())
        if status == 0:
            return Ended(output)
        line = next(reversed(errors.strip().splitlines()), "")[-_TAIL_CHARS:]
        how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
        if status == WORLDS_FAULT:
            raise EnvFault(f"the program ended with status {status}: {line}")
        return Ended(output, f"{how}: {line}" if line else how)

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
        limits = httpx.Limits(max_connections=None)
        # The gateway's own limit of an episode's time ends a request
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(None), limits=limits)

    async def run(self, variables: Mapping[str, str], task: str) -> Ended:
        """Asks the next server. Raises: EnvFault if that is gone, or answers 503."""
        url = next(self._urls)
        try:
            answer = await self._client.post(url, json={**variables, "AGENTPEFT_TASK": task})
        except httpx.TransportError as error:
            raise EnvFault(f"the agent's server {url}: {type(error).__name__} {error}") from error
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise EnvFault(f"the agent's server {url} answered 503")
        if answer.status_code != httpx.codes.OK:
            return Ended("", f"the server answered {answer.status_code}")
        return Ended(answer.text)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


async def _tell(stream: asyncio.StreamWriter | None, text: str) -> None:
    """Writes a text and closes the stream, which the program need not read."""
    assert stream is not None  # noqa: S101 (it is a pipe)
    with suppress(ConnectionError):
        stream.write(text.encode("utf-8", "replace"))
        await stream.drain()
    stream.close()


async def _read_end(stream: asyncio.StreamReader | None) -> str:
    """Reads a stream to its end, and returns the last of it."""
    assert stream is not None  # noqa: S101 (it is a pipe)
    text = b""
    while block := await stream.read(1 << 16):
        text = (text + block)[-_MAX_OUTPUT_BYTES:]
    return text.decode("utf-8", "replace")
