"""`agentpeft mcp`: what an MCP client sees, plays and is graded with."""

import asyncio
import json
import os
import sys

import gymnasium
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from agentpeft.apps.serve.mcp_server import NEXT_TASK, ToolSession, main
from agentpeft.envs import EnvFault
from agentpeft.policies.rollout.environments import EnvPool

DB_BENCH = "AgentPEFT/DBBench-v0"


DOWN = """
import gymnasium
from agentpeft.envs import EnvFault

class DownEnv(gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        return "Go.", {}

    def step(self, action):
        raise EnvFault("the database is gone")

gymnasium.register("Down-v0", DownEnv)
"""


class DownEnv(gymnasium.Env):
    """A world that fails at every step."""

    def reset(self, *, seed=None, options=None):
        return "Go.", {}

    def step(self, action):
        raise EnvFault("the database is gone")


def oracle_calls(env_id, position, **kwargs):
    """Returns how the oracle plays the task of a position, and the task's id."""
    pool = EnvPool(env_id, {"prompt": "tools", **kwargs}, (0,))
    task = pool.task_at(position)
    env, _ = pool.begin(position, task)
    tools = env.unwrapped.get_tools()
    calls = list(map(tools.find_call, env.unwrapped.oracle_actions(task)))
    pool.close()
    return calls, task.task_id


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_a_client_plays_the_oracle_and_the_file_says_so(tmp_path, mcp_variables):
    path = tmp_path / "results.jsonl"
    command = ["-m", "agentpeft.launch.cli", "mcp", DB_BENCH, "skills=['select']"]
    options = ["--num-tasks", "2", "--results", str(path)]

    async def play():
        parameters = StdioServerParameters(
            command=sys.executable, args=[*command, *options], env=mcp_variables
        )
        async with stdio_client(parameters) as streams, ClientSession(*streams) as client:
            await client.initialize()
            tools = [tool.name for tool in (await client.list_tools()).tools]
            said = []

            async def call(name, arguments):
                answer = await client.call_tool(name, arguments)
                assert not answer.isError
                said.append(answer.content[0].text)

            await call("submit", {"answer": "1"})
            for position in range(2):
                await call(NEXT_TASK, {})
                for one in oracle_calls(DB_BENCH, position, skills=["select"])[0]:
                    await call(one.name, one.arguments)
            await call(NEXT_TASK, {})
            return tools, said

    tools, said = asyncio.run(play())
    assert tools == [NEXT_TASK, "execute_sql", "submit"]
    assert said[0] == "No task has begun; call next_task."
    assert said[1].startswith("You work on a MySQL database.") and said[2].startswith("[(")
    assert said[-1] == "There are no more tasks."
    ids = [oracle_calls(DB_BENCH, position, skills=["select"])[1] for position in range(2)]
    assert not any(task_id in text for task_id in ids for text in said)
    assert read(path) == [{"task_id": i, "outcome": "success", "return": 1.0} for i in ids]


@pytest.mark.slow
def test_a_fault_of_the_world_is_an_error_of_its_call(tmp_path, mcp_variables):
    (tmp_path / "down.py").write_text(DOWN, encoding="utf-8")
    path = f"{tmp_path}{os.pathsep}{mcp_variables['PYTHONPATH']}"
    command = ["-m", "agentpeft.launch.cli", "mcp", "down:Down-v0"]

    async def play():
        parameters = StdioServerParameters(
            command=sys.executable, args=command, env={**mcp_variables, "PYTHONPATH": path}
        )
        async with stdio_client(parameters) as streams, ClientSession(*streams) as client:
            await client.initialize()
            calls = [(NEXT_TASK, {}), ("act", {"action": "x"}), ("act", {"wrong": 1})]
            answers = [await client.call_tool(*call) for call in calls]
            return [(answer.isError, answer.content[0].text) for answer in answers]

    assert asyncio.run(play()) == [
        (False, "Go."),
        (True, "the database is gone"),
        (False, "The episode is over."),
    ]


def test_a_malformed_call_is_a_turn_and_a_task_that_is_left_was_invalid(tmp_path):
    path = tmp_path / "results.jsonl"
    session = ToolSession(DB_BENCH, {}, 0, None, path)
    session.call(NEXT_TASK, {})
    assert session.call("submit", {"text": "1"}).startswith("Invalid call: submit has no argument")
    assert session.call("submit", {"answer": "1"}) == "The episode is over."
    session.call(NEXT_TASK, {})
    session.call(NEXT_TASK, {})
    session.close()
    assert [(line["outcome"], line["return"]) for line in read(path)] == [
        ("invalid_action", pytest.approx(-0.1))
    ] * 3


def test_a_fault_of_the_world_ends_the_task_without_an_outcome(tmp_path):
    gymnasium.register("Down-v0", DownEnv)
    session = ToolSession("Down-v0", {}, 0, None, tmp_path / "results.jsonl")
    assert session.call(NEXT_TASK, {}) == "Go."
    with pytest.raises(EnvFault, match="database is gone"):
        session.call("act", {"action": "x"})
    assert session.call("act", {"action": "x"}) == "The episode is over."
    assert session.call(NEXT_TASK, {}) == "Go."
    session.close()
    outcomes = [line["outcome"] for line in read(tmp_path / "results.jsonl")]
    assert outcomes == ["unknown", "invalid_action"]
    gymnasium.registry.pop("Down-v0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["AgentPEFT/DBench-v0"], "unknown environment 'AgentPEFT/DBench-v0'; did you mean"),
        ([DB_BENCH, "split"], "expected KEY=VALUE, got 'split'"),
        ([DB_BENCH, "skill=x"], "unknown setting 'skill'"),
        ([DB_BENCH, "--num-tasks", "0"], "--num-tasks must be"),
    ],
)
def test_wrong_words_are_one_line(words, message, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
