"""Requests to a process that serves a sandbox, in lines of JSON: `Channel`.

`compose_program` makes the program of such a process.
"""

import json
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentpeft.envs.core.errors import EnvFault

_PACKAGE = __name__.rpartition(".")[0] + ".inside"
_MODULES = (
    *("kernel", "root_files", "served_files", "children", "left_pipes", "live_processes"),
    "shell",
)
"""In the order in which they import one another."""
_ANSWER_TIMEOUT_S = 120.0
_MAX_WAIT_S = 1_000_000.0
"""About what `poll` takes, in milliseconds."""
_PROGRAM = """
import sys, types
package = sys.modules[{package!r}] = types.ModuleType({package!r})
for name, source in {sources!r}:
    module = sys.modules[{package!r} + "." + name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    setattr(package, name, module)
module.main()
"""


class ChannelClosedError(EnvFault):
    """The process at the other end is gone, or does not answer."""


class Refusal(EnvFault):
    """The request could not be carried out."""


class Channel:
    """One request at a time, over something that sends and receives bytes."""

    def __init__(self, send: Callable[[bytes], object], receive: Callable[[float], bytes]) -> None:
        """`receive` waits for as many seconds, and returns nothing if nothing comes any more."""
        self._send = send
        self._receive = receive
        self._buffer = bytearray()
        self._num_requests = 0

    def request(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """Returns what an operation gives; None if the worker was killed under it.

        Raises: Refusal, ChannelClosedError.
        """
        self._num_requests += 1
        request = {"id": self._num_requests, "operation": operation, "arguments": arguments}
        self.write_line(json.dumps(request))
        reply: dict[str, Any] = {"id": 0}
        while reply["id"] not in (self._num_requests, None):
            line = self.read_line(timeout_s + _ANSWER_TIMEOUT_S)
            if not line.startswith("{"):
                raise Refusal(line)
            reply = json.loads(line)
        if "error" in reply:
            raise Refusal(f"a sandbox cannot {operation}: {reply['error']}")
        return reply.get("value")

    def read_line(self, timeout_s: float) -> str:
        """Returns the next line. Raises: ChannelClosedError."""
        deadline_s = time.monotonic() + timeout_s
        num_searched = 0
        while (end := self._buffer.find(b"\n", num_searched)) < 0:
            num_searched = len(self._buffer)
            try:
                data = self._receive(max(0.0, deadline_s - time.monotonic()))
            except OSError:
                data = b""
            if not data or time.monotonic() > deadline_s:
                raise ChannelClosedError("the process that holds a sandbox is gone, or hangs")
            self._buffer += data
        line = self._buffer[:end].decode()
        del self._buffer[: end + 1]
        return line

    def write_line(self, line: str) -> None:
        """Sends a line. Raises: ChannelClosedError."""
        try:
            self._send(line.encode() + b"\n")
        except (OSError, ValueError) as error:
            raise ChannelClosedError(f"the process that holds a sandbox is gone: {error}") from None


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Waits for something to read, or an end, on a descriptor of any number."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(min(timeout_s, _MAX_WAIT_S) * 1000))


def compose_program(main: str) -> str:
    """Returns a Python program of `inside`'s modules that runs the `main` of one of them.

    It needs no package installed, and imports none: it starts in 30 ms.
    """
    folder = Path(__file__).parent / "inside"
    sources = [(name, (folder / f"{name}.py").read_text()) for name in (*_MODULES, main)]
    return _PROGRAM.format(package=_PACKAGE, sources=sources)
