"""How many episodes a second does each driver play, beside the bare environment?

`python benchmarks/driver_throughput.py [DRIVER …]`, in `.venv` and in `.venv-drivers`. The oracle
plays the same 300 tasks of DB-bench through each driver whose library is installed; the model's
time is nil. A line for each: episodes a second, those of the bare environment just before, and the
milliseconds of this process's processor time for an episode of both.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentpeft.envs.tools.tool_episode import ToolEpisode, tool_kwargs
from agentpeft.envs.tools.tool_table import ToolCall
from agentpeft.policies.rollout.env_pool import EnvPool

GAME = "AgentPEFT/DBBench-v0"
NUM_EPISODES = 300


class Oracle:
    """The tasks of positions, their prompts, and how the oracle plays them."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        self.pool = EnvPool(GAME, kwargs, (0,))
        self.tasks = [self.pool.task_at(position) for position in range(NUM_EPISODES)]
        self.env, _ = self.pool.begin(0, self.tasks[0])
        self.actions: dict[str, list[str]] = {}
        self.prompts = []
        for task in self.tasks:
            prompt = self.env.reset(options={"task": task})[0]
            self.prompts.append(prompt)
            self.actions[prompt] = list(self.env.unwrapped.oracle_actions(task))

    def call(self, prompt: str, turn: int) -> ToolCall:
        """Returns the call of a turn."""
        return self.env.unwrapped.tools.find_call(self.actions[prompt][turn])

    def bare(self, num: int) -> float:
        """Plays all tasks in the environment itself."""
        total = 0.0
        for task in self.tasks[:num]:
            prompt, _ = self.env.reset(options={"task": task})
            total += sum(self.env.step(action)[1] for action in self.actions[prompt])
        return total


TEXT, TOOLS = Oracle({}), Oracle(tool_kwargs(GAME, {}))


def tool_episode(num: int) -> float:
    """Plays calls of the table of tools, without any library."""
    total = 0.0
    for task in TOOLS.tasks[:num]:
        prompt, _ = TOOLS.env.reset(options={"task": task})
        episode = ToolEpisode(TOOLS.env)
        for turn in range(len(TOOLS.actions[prompt])):
            episode.call(TOOLS.call(prompt, turn))
        total += episode.episode_return
    return total


def openai_tools(num: int) -> float:
    """Plays through a client of OpenAI's shape, without a network."""
    from openai.types.chat import ChatCompletionMessage

    from agentpeft.policies.drivers.openai_loop import play_by_tools

    def create(messages: list[dict[str, Any]], **_: Any) -> Any:
        num_said = sum(message["role"] == "assistant" for message in messages)
        call = TOOLS.call(messages[0]["content"], num_said)
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        calls = [{"id": "1", "type": "function", "function": function}]
        message = ChatCompletionMessage(role="assistant", content=None, tool_calls=calls)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    total = 0.0
    for task in TOOLS.tasks[:num]:
        prompt, _ = TOOLS.env.reset(options={"task": task})
        total += play_by_tools(client, "oracle", TOOLS.env, prompt).episode_return
    return total


def trl_tools(num: int) -> float:
    """Calls the methods of TRL's environment."""
    from agentpeft.policies.drivers.trl_environment import TrlEnvironment

    env, total = TrlEnvironment(GAME), 0.0
    for position in range(num):
        prompt = env.reset(position)
        for turn in range(len(TOOLS.actions[prompt])):
            call = TOOLS.call(prompt, turn)
            getattr(env, str(call.name))(**call.arguments)
        total += env.get_reward()
    return total


def mcp_stdio(num: int) -> float:
    """Plays as an MCP client of a server that is started for it."""
    import asyncio

    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def play() -> float:
        results = Path(tempfile.mkdtemp()) / "results.jsonl"
        words = ["-m", "agentpeft.launch.cli", "mcp", GAME, "--results", str(results)]
        server = StdioServerParameters(command=sys.executable, args=words)
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            for _ in range(num):
                prompt = (await client.call_tool("next_task", {})).content[0].text
                for turn in range(len(TOOLS.actions[prompt])):
                    call = TOOLS.call(prompt, turn)
                    await client.call_tool(str(call.name), call.arguments)
        lines = results.read_text("utf-8").splitlines()
        return sum(json.loads(line)["return"] for line in lines)

    return asyncio.run(play())


def skyrl_gym(num: int) -> float:
    """Plays as SkyRL-gym does, an environment for each episode."""
    from agentpeft.policies.drivers.skyrl_env import SkyRLEnv

    total = 0.0
    for position in range(num):
        env = SkyRLEnv({"game": GAME}, {"position": position})
        prompt, _ = env.init([{"role": "user", "content": ""}])
        for action in TEXT.actions[prompt[-1]["content"]]:
            total += env.step(action)["reward"]
        env.close()
    return total


def gem(num: int) -> float:
    """Plays through GEM's interface."""
    from agentpeft.policies.drivers.gem_env import GemEnv

    env, total = GemEnv(GAME), 0.0
    for task in TEXT.tasks[:num]:
        env._env.reset(options={"task": task})  # GEM itself draws by seed
        prompt = env._env.unwrapped.episode.prompt
        total += sum(env.step(action)[1] for action in TEXT.actions[prompt])
    return total


def inspect_ai(num: int) -> float:
    """Evaluates a mock model of Inspect AI's."""
    import inspect_ai as library
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from agentpeft.policies.drivers.inspect_task import make_inspect_task

    def answer(messages: list[Any], *_: Any) -> ModelOutput:
        num_said = sum(message.role == "assistant" for message in messages)
        call = TOOLS.call(messages[0].text, num_said)
        output = ModelOutput.for_tool_call("mockllm/model", str(call.name), call.arguments)
        output.usage = ModelUsage()
        return output

    model = get_model("mockllm/model", custom_outputs=answer)
    task = make_inspect_task(GAME, num)
    (log,) = library.eval(task, model, display="none")
    return sum(score.value for each in log.samples for score in each.scores.values())


def measure(play: Callable[[int], float]) -> tuple[int, float]:
    """Returns episodes a second, and milliseconds of processor time for each.

    The first few, for which libraries are imported, are not counted.
    """
    play(3)
    start_s, cpu_start_s = time.perf_counter(), time.process_time()
    total = play(NUM_EPISODES)
    spent_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_start_s
    assert total == NUM_EPISODES, f"{play.__name__} earned {total}"
    return round(NUM_EPISODES / spent_s), round(cpu_s / NUM_EPISODES * 1000, 2)


def main() -> None:
    """Prints a line for each driver."""
    drivers = (tool_episode, openai_tools, trl_tools, mcp_stdio, skyrl_gym, gem, inspect_ai)
    for driver in drivers:
        if driver.__name__ not in (sys.argv[1:] or [each.__name__ for each in drivers]):
            continue
        bare, bare_cpu_ms = measure(TEXT.bare)
        try:
            played, cpu_ms = measure(driver)
        except ModuleNotFoundError as error:
            print(json.dumps({"driver": driver.__name__, "missing": error.name}))
            continue
        print(
            json.dumps(
                {
                    "driver": driver.__name__,
                    "episodes_per_s": played,
                    "bare_episodes_per_s": bare,
                    "cpu_ms": cpu_ms,
                    "bare_cpu_ms": bare_cpu_ms,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
