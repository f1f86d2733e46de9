"""The training tool over MCP, asked by the client of MCP's own package over standard input."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from process_parts import children_of, seconds_until_gone
from test_training_tool import SMALL

from agentpeft.apps.training_tool.training_tool import TOOL_SCHEMA

pytestmark = pytest.mark.slow
WORDS = ["-m", "agentpeft.launch.cli", "training-tool"]
RUN = "import sys\nsys.modules['mcp'] = None\nfrom agentpeft.launch.cli import main\n"


@asynccontextmanager
async def client(tmp_path, variables):
    variables = {**variables, "AGENTPEFT_CACHE": str(tmp_path / "cache")}
    server = StdioServerParameters(
        command=sys.executable, args=WORDS, env=variables, cwd=str(tmp_path)
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield session


def test_an_agent_lists_the_tools_trains_evaluates_and_scores(tmp_path, mcp_variables):
    steps = []

    async def told(progress, total, message):
        steps.append((progress, json.loads(message)["step"]))

    async def talk():
        async with client(tmp_path, mcp_variables) as session:
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            trained = await session.call_tool(
                "training_tool",
                {"max_samples": 4, "batch_size": 2, "output_dir": "out", "settings": SMALL},
                progress_callback=told,
            )
            wrong = await session.call_tool("training_tool", {"algorithm": "gpro"})
            scored = await session.call_tool(
                "evaluate_rewards",
                {"completions": [{"task_id": "addition:1+2:plain", "actions": ["3"]}]},
            )
            unknown = await session.call_tool("train", {})
            return tools, trained, wrong, scored, unknown

    tools, trained, wrong, scored, unknown = asyncio.run(talk())
    assert set(tools) == {"training_tool", "evaluate_rewards"}
    assert tools["training_tool"].inputSchema == TOOL_SCHEMA["function"]["parameters"]
    answer = json.loads(trained.content[0].text)
    assert not trained.isError and answer["status"] == "ok"
    assert os.path.isdir(answer["adapter"])  # noqa: PTH112 (a text)
    assert steps == [(0, 0), (1, 1), (2, 2), (2, 2)]
    assert wrong.isError and "algorithm: Input should be" in wrong.content[0].text
    assert json.loads(scored.content[0].text)["rewards"] == [1.0]
    assert unknown.isError and "unknown tool 'train'" in unknown.content[0].text


def test_a_call_ends_with_its_client(tmp_path):
    """A server that is killed leaves no training behind."""
    command = [sys.executable, *WORDS]
    variables = {**os.environ, "AGENTPEFT_CACHE": str(tmp_path / "cache")}
    server = subprocess.Popen(
        command, cwd=tmp_path, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello |= {"clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "training_tool", "arguments": {"max_samples": 10_000}}
    for message in (
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    server.stdin.flush()
    deadline_s = time.monotonic() + 120
    while not (calls := children_of(server.pid)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    time.sleep(1)  # the call has begun to load
    server.send_signal(signal.SIGTERM)
    assert server.wait(10) == -signal.SIGTERM and calls
    server.stdin.close()
    server.stdout.close()
    seconds_until_gone(calls, limit_s=30)


def test_a_missing_package_is_one_line():
    command = [sys.executable, "-c", RUN + "sys.exit(main(['training-tool']))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.endswith("pip install 'agentpeft[mcp]'\n")
