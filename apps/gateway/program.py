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
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import httpx
from pydantic import HttpUrl

from agentpeft.envs import EnvFault, SettingsError

HOST = "127.0.0.1"
"""Where the gateway listens, which no proxy is asked for."""
WORLDS_FAULT = 78
"""The exit status (EX_CONFIG) by which a program says that it could not do its work."""
_MAX_OUTPUT_BYTES = 1 << 20
_MAX_VARIABLE_BYTES = 100_000
"""Linux starts no process with a variable of more than 128 KiB."""
_TAIL_CHARS = 300
_NO_LIMIT = httpx.Timeout(None)
_KILL_S = 5.0
"""How long a killed process may take to end."""
_WATCH = "read group; read end; kill -s KILL -- -$group"
"""Kills a program with all that it has started once the pipe that it reads is closed.

By us, or by the end of this process: a killed one ends no program itself.
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended: what it printed, and what was wrong, "" if nothing."""

    output: str
    problem: str = ""


class FreshProcesses:
    """Starts a command for each episode."""

    pause_s = 0.0

    def __init__(self, command: str, folder: str | None) -> None:
        """`folder` is where it runs. Raises: SettingsError where there is no such program."""
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise SettingsError(f"env_runners.agent.command {command!r}: {error}") from None
        self._folder = folder
        program = self._words[0] if self._words else ""
        place = Path(folder or ".", program) if "/" in program else program
        if not program or shutil.which(place) is None:
            raise SettingsError(f"env_runners.agent.command: no executable program {program!r}")
        if folder is not None and not Path(folder).is_dir():
            raise SettingsError(f"env_runners.agent.folder: there is no folder {folder!r}")

    async def run(self, variables: Mapping[str, str], task: str) -> Ended:
        """Runs it to its end; cancelled, it ends it. Raises: EnvFault if the world failed it.

        It has ended when its first process has, whatever else still holds its output open.
        """
        told = {**os.environ, **variables}
        for name in ("NO_PROXY", "no_proxy"):
            told[name] = "*" if told.get(name) == "*" else f"{told.get(name, '')},{HOST}"
        if len(task.encode("utf-8", "replace")) <= _MAX_VARIABLE_BYTES and "\0" not in task:
            told["AGENTPEFT_TASK"] = task
        with ExitStack() as stack:
            try:
                shown = stack.enter_context(TemporaryFile())
                shown.write(task.encode("utf-8", "replace"))
                shown.seek(0)
                output, errors = [await _open_output(stack) for _ in range(2)]
                start = partial(asyncio.create_subprocess_exec, start_new_session=True)
                watched, held = os.pipe()
                alive = stack.enter_context(os.fdopen(held, "wb", 0))
                with os.fdopen(watched):
                    watch = await start("sh", "-c", _WATCH, stdin=watched, stderr=DEVNULL)
                process = await start(
                    *self._words,
                    stdin=shown,
                    stdout=output.pipe,
                    stderr=errors.pipe,
                    cwd=self._folder,
                    env=told,
                )
            except (OSError, RuntimeError, ValueError) as error:
                raise EnvFault(f"the program could not be started: {error}") from error
            try:
                with suppress(BrokenPipeError):  # somebody has killed the watch
                    alive.write(b"%d\n" % process.pid)
                status = await process.wait()
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                alive.close()
                with suppress(TimeoutError):
                    # What was printed before the process ended has been read by then
                    await asyncio.wait_for(asyncio.gather(process.wait(), watch.wait()), _KILL_S)
        if status == 0:
            return Ended(output.text)
        line = next(reversed(errors.text.strip().splitlines()), "")[-_TAIL_CHARS:]
        how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
        if status == WORLDS_FAULT:
            raise EnvFault(f"the program ended with status {status}: {line}")
        return Ended(output.text, f"{how}: {line}" if line else how)


class ServerPool:
    """Asks servers that play episodes, in turn: a POST with the variables and the task.

    A server answers 200 with what a process would print when the episode is over. 503, or no
    server at all, is the world's fault, any other answer the agent's.
    """

    pause_s = 2.0
    """How long a server that is gone, or busy, is left alone after an episode."""

    def __init__(self, urls: Sequence[HttpUrl]) -> None:
        self._urls = itertools.cycle(urls)
        self._certificates = httpx.create_ssl_context()

    async def run(self, variables: Mapping[str, str], task: str) -> Ended:
        """Asks the next server. Raises: EnvFault if that is gone, or answers 503."""
        url, told = str(next(self._urls)), {**variables, "AGENTPEFT_TASK": task}
        try:
            # The gateway's own limit of an episode's time ends a request
            async with httpx.AsyncClient(timeout=_NO_LIMIT, verify=self._certificates) as client:
                answer = await client.post(url, json=told)
        except httpx.HTTPError as error:
            raise EnvFault(f"the agent's server {url}: {type(error).__name__} {error}") from None
        if answer.status_code == 503:
            raise EnvFault(f"the agent's server {url} answered 503")
        if answer.status_code != 200:
            return Ended("", f"the server answered {answer.status_code}")
        return Ended(answer.text)


class _Output(asyncio.Protocol):
    """The last of what a program prints into a pipe, which it never finds full."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self._bytes = bytearray()

    def data_received(self, data: bytes) -> None:
        """Keeps the last."""
        self._bytes += data
        del self._bytes[:-_MAX_OUTPUT_BYTES]

    @property
    def text(self) -> str:
        """What was printed up to now."""
        return self._bytes.decode("utf-8", "replace")


async def _open_output(stack: ExitStack) -> _Output:
    """Returns a pipe to print into, which `stack` closes."""
    end, pipe = os.pipe()
    stack.callback(os.close, pipe)
    loop, output = asyncio.get_running_loop(), _Output(pipe)
    transport, _ = await loop.connect_read_pipe(lambda: output, os.fdopen(end, "rb"))
    stack.callback(transport.close)
    return output
