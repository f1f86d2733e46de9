"""Tools over MCP's standard input and output, with version 1 or 2 of the `mcp` package.

The versions differ in how a server is given its handlers, and in how a call tells of its progress.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, TextIO, TypeAlias

from agentpeft.envs import SettingsError

Json: TypeAlias = dict[str, Any]
Report: TypeAlias = Callable[[float, str], Awaitable[None]]
"""Tells a client that asks for it how far a call is, and a message."""
Call: TypeAlias = Callable[[str, Json, Report], Awaitable[tuple[str, bool]]]
"""Calls a tool by its name with arguments. Returns the answer, and whether it is an error."""


def check_mcp() -> None:
    """Raises: SettingsError unless version 1 or 2 of the `mcp` package is installed."""
    wanted = "pip install 'agentpeft[mcp]'"
    try:
        import mcp  # noqa: F401 (whether it is there)
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error}: {wanted}") from error
    if _major_version() not in (1, 2):
        raise SettingsError(f"expected version 1 or 2 of mcp, got {version('mcp')}: {wanted}")


def _major_version() -> int:
    return int(version("mcp").partition(".")[0])


def describe_tool(name: str, description: str, schema: Mapping[str, object]) -> Json:
    """Returns a tool as MCP's clients see it; `schema` is the JSON schema of its arguments."""
    return {"name": name, "description": description, "inputSchema": schema}


async def serve_tools(
    tools: Sequence[Json],
    call: Call,
    *,
    instructions: str | None = None,
    stdout: TextIO | None = None,
) -> None:
    """Answers what comes on standard input until it ends.

    `call` gets arguments as the client sent them: nobody has compared them with the schema.
    `stdout` is the protocol's stream; None: standard output.
    """
    import anyio
    from mcp import types
    from mcp.server.stdio import stdio_server

    listed = types.ListToolsResult.model_validate({"tools": tools})

    async def answer(name: str, arguments: Json | None, report: Report) -> types.CallToolResult:
        text, is_error = await call(name, arguments or {}, report)
        content = [{"type": "text", "text": text}]
        return types.CallToolResult.model_validate({"content": content, "isError": is_error})

    make = _make_server_1 if _major_version() == 1 else _make_server_2
    server = make(listed, answer, instructions)
    lines = None if stdout is None else anyio.wrap_file(stdout)
    async with stdio_server(stdout=lines) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _make_server_1(listed: Any, answer: Any, instructions: str | None) -> Any:
    from mcp.server.lowlevel import Server

    server: Any = Server("agentpeft", instructions=instructions)

    async def list_tools() -> Any:
        return listed.tools

    async def call_tool(name: str, arguments: Json) -> Any:
        meta, session = server.request_context.meta, server.request_context.session
        token = None if meta is None else meta.progressToken

        async def report(amount: float, message: str) -> None:
            if token is not None:
                await session.send_progress_notification(token, amount, message=message)

        return await answer(name, arguments, report)

    server.list_tools()(list_tools)
    server.call_tool(validate_input=False)(call_tool)
    return server


def _make_server_2(listed: Any, answer: Any, instructions: str | None) -> Any:
    from mcp.server.lowlevel import Server

    async def list_tools(*_: Any) -> Any:
        return listed

    async def call_tool(context: Any, parameters: Any) -> Any:
        async def report(amount: float, message: str) -> None:
            await context.session.report_progress(amount, message=message)

        return await answer(parameters.name, parameters.arguments, report)

    make: Any = Server
    return make(
        "agentpeft",
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
