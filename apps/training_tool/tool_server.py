"""Serves the training tool to agents over MCP, the Model Context Protocol, on standard input.

```sh
agentpeft training-tool
```

An MCP client starts this command and speaks JSON-RPC with it. There are two tools, `training_tool`
and `evaluate_rewards`, which answer with the JSON that the functions of these names return. Each
call is a process of its own, beside which the server still answers; a call that is cancelled, or
whose client has gone, is killed. A client that asks for progress is told of each iteration.

Standard output is the protocol's alone. Exit status: 0 standard input was closed; 2 the `mcp`
package is missing.
"""

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from agentpeft.apps.training_tool.mcp_tools import (
    Json,
    Report,
    check_mcp,
    describe_tool,
    serve_tools,
)
from agentpeft.launch.run.command_line import CommandLine

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream

main = CommandLine()
_ONE_CALL = "agentpeft.apps.training_tool.one_call"


@main.add(help=__doc__)
def serve() -> int:
    """Serves until standard input is closed. Raises: SettingsError without the `mcp` package."""
    check_mcp()
    import anyio

    # The thread that reads standard input cannot be interrupted
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(_serve)
    return 0


async def _serve() -> None:
    from agentpeft.apps.training_tool.training_tool import REWARDS_SCHEMA, TOOL_SCHEMA

    functions = [schema["function"] for schema in (TOOL_SCHEMA, REWARDS_SCHEMA)]
    tools = [describe_tool(f["name"], f["description"], f["parameters"]) for f in functions]
    names = {function["name"] for function in functions}

    async def call(name: str, arguments: Json, report: Report) -> tuple[str, bool]:
        if name not in names:
            return f"unknown tool {name!r}", True
        answer = await _call(name, arguments, report)
        return answer, json.loads(answer)["status"] == "error"

    await serve_tools(tools, call)


async def _call(name: str, arguments: Json, report: Report) -> str:
    """Returns what the tool answers; a process without an answer is an error of its own."""
    import anyio

    command = [sys.executable, "-m", _ONE_CALL, name, str(os.getpid())]
    async with await anyio.open_process(command) as process, anyio.create_task_group() as tasks:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101 (they are pipes)
        tasks.start_soon(_pass_on, report, process.stderr)
        await process.stdin.send(json.dumps(arguments).encode())
        await process.stdin.aclose()
        answer = b"".join([chunk async for chunk in process.stdout]).decode()
    if answer:
        return answer
    message = f"the process of this call ended with exit status {process.returncode}"
    return json.dumps({"status": "error", "message": f"{message}; see the server's standard error"})


async def _pass_on(report: Report, errors: "ByteReceiveStream") -> None:
    """Writes a call's standard error to ours, and tells the client of each iteration in it."""
    from anyio.streams.text import TextReceiveStream

    rest = ""
    async for text in TextReceiveStream(errors, errors="replace"):
        sys.stderr.write(text)
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            if line.startswith('{"step": '):
                await report(json.loads(line)["step"], line)


if __name__ == "__main__":
    sys.exit(main())
