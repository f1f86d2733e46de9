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
from typing import TYPE_CHECKING, Any

from agentpeft.launch.run.command_line import CommandLine, need_mcp

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream
    from mcp.server.lowlevel import Server

Json = dict[str, Any]
main = CommandLine()
_ONE_CALL = "agentpeft.launch.agent_tool.one_call"


@main.add(help=__doc__)
def serve() -> int:
    """Serves until standard input is closed. Raises: SettingsError without the `mcp` package."""
    need_mcp()
    import anyio

    # The thread that reads standard input cannot be interrupted
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(_serve)
    return 0


async def _serve() -> None:
    from mcp.server.stdio import stdio_server

    server = _make_server()
    async with stdio_server() as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


def _make_server() -> "Server[Any, Any]":
    """Returns a server of the two tools."""
    from mcp import types
    from mcp.server.lowlevel import Server

    from agentpeft.launch.training_tool import REWARDS_SCHEMA, TOOL_SCHEMA

    server: Server[Any, Any] = Server("agentpeft")
    functions = [schema["function"] for schema in (TOOL_SCHEMA, REWARDS_SCHEMA)]

    @server.list_tools()  # type: ignore[no-untyped-call, untyped-decorator]
    async def list_tools() -> list[types.Tool]:
        return [
            types.Tool(name=f["name"], description=f["description"], inputSchema=f["parameters"])
            for f in functions
        ]

    @server.call_tool(validate_input=False)  # type: ignore[untyped-decorator]
    async def call_tool(name: str, arguments: Json) -> types.CallToolResult:
        if name not in {f["name"] for f in functions}:
            raise ValueError(f"unknown tool {name!r}")
        answer = await _call(server, name, arguments)
        failed = json.loads(answer)["status"] == "error"
        content = [types.TextContent(type="text", text=answer)]
        return types.CallToolResult(content=list(content), isError=failed)

    return server


async def _call(server: "Server[Any, Any]", name: str, arguments: Json) -> str:
    """Returns what the tool answers; a process without an answer is an error of its own."""
    import anyio

    command = [sys.executable, "-m", _ONE_CALL, name, str(os.getpid())]
    async with await anyio.open_process(command) as process, anyio.create_task_group() as tasks:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101 (they are pipes)
        tasks.start_soon(_pass_on, server, process.stderr)
        await process.stdin.send(json.dumps(arguments).encode())
        await process.stdin.aclose()
        answer = b"".join([chunk async for chunk in process.stdout]).decode()
    if answer:
        return answer
    message = f"the process of this call ended with exit status {process.returncode}"
    return json.dumps({"status": "error", "message": f"{message}; see the server's standard error"})


async def _pass_on(server: "Server[Any, Any]", errors: "ByteReceiveStream") -> None:
    """Writes a call's standard error to ours, and tells the client of each iteration in it."""
    from anyio.streams.text import TextReceiveStream

    meta, session = server.request_context.meta, server.request_context.session
    token = None if meta is None else meta.progressToken
    rest = ""
    async for text in TextReceiveStream(errors, errors="replace"):
        sys.stderr.write(text)
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            if token is not None and line.startswith('{"step": '):
                step = json.loads(line)["step"]
                await session.send_progress_notification(token, step, message=line)


if __name__ == "__main__":
    sys.exit(main())
