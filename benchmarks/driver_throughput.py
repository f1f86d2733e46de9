"""How many episodes a second does each driver play, beside the bare environment?

`python benchmarks/driver_throughput.py [DRIVER …]`, in `.venv`, in `.venv-drivers`, in `.venv-trl`,
and in `.venv` with `PYTHONPATH=.venv-trainers`. The oracle plays the same 300 tasks of DB-bench
through each driver whose library is installed; the model's time is nil. A line for each: episodes
a second, those of the bare environment just before, and the milliseconds of this process's
processor time for an episode of both, in which those of servers and harnesses are not.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentpeft.apps.drivers.tool_episode import ToolEpisode, tool_kwargs
from agentpeft.envs.tools.tool_table import ToolCall
from agentpeft.policies.rollout.environments import EnvPool

ROOT = Path(__file__).parents[1]
sys.path += [
    str(ROOT / "tests"),
    str(ROOT / "tests" / "apps"),
]  # some of what plays is what tests play by
GAME = "AgentPEFT/DBBench-v0"
NUM_EPISODES = 300
MAX_TOKENS = 20_000


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
        return self.env.unwrapped.get_tools().find_call(self.actions[prompt][turn])

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

    from agentpeft.apps.drivers.openai_loop import play_by_tools

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
    from agentpeft.apps.drivers.trl_environment import TrlEnvironment

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


def read_recipe(word: str) -> Any:
    """Returns the recipe of the drivers' page that has a word, as a module."""
    from needed_blocks import import_recipe

    with tempfile.TemporaryDirectory() as folder:
        return import_recipe("docs/training/drivers.md", word, Path(folder))


def skyrl_gym(num: int) -> float:
    """Plays as SkyRL-gym does, an environment for each episode."""
    make_env, total = read_recipe("import skyrl_gym").SkyRLEnv, 0.0
    for position in range(num):
        env = make_env({"game": GAME}, {"position": position})
        prompt, _ = env.init([{"role": "user", "content": ""}])
        for action in TEXT.actions[prompt[-1]["content"]]:
            total += env.step(action)["reward"]
        env.close()
    return total


def gem(num: int) -> float:
    """Plays through GEM's interface."""
    env, total = read_recipe("import gem").GemEnv(GAME), 0.0
    for task in TEXT.tasks[:num]:
        env._env.reset(options={"task": task})  # GEM itself draws by seed
        prompt = env._env.unwrapped.episode.prompt
        total += sum(env.step(action)[1] for action in TEXT.actions[prompt])
    return total


def langgraph(num: int) -> float:
    """Plays graphs of a chat model of LangChain's shape."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    from agentpeft.apps.drivers.langgraph_agent import make_graph

    class Scripted(BaseChatModel):  # type: ignore[misc]
        _llm_type = "oracle"

        def bind_tools(self, tools: Any, **_: Any) -> Any:
            del tools
            return self

        def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
            num_said = sum(message.type == "ai" for message in messages)
            call = TOOLS.call(messages[0].content, num_said)
            asked = [{"name": call.name, "args": dict(call.arguments), "id": "1"}]
            said = AIMessage("", tool_calls=asked)
            return ChatResult(generations=[ChatGeneration(message=said)])

    total = 0.0
    for task in TOOLS.tasks[:num]:
        prompt, _ = TOOLS.env.reset(options={"task": task})
        episode = ToolEpisode(TOOLS.env)
        make_graph(Scripted(), episode).invoke({"messages": [("user", prompt)]})
        total += episode.episode_return
    return total


def swift(num: int) -> float:
    """Plays as ms-swift's schedulers do, an environment for each episode."""
    import asyncio

    from agentpeft.apps.drivers.swift_env import SwiftEnv

    async def play() -> float:
        total = 0.0
        for position in range(num):
            env = SwiftEnv({"game": GAME, "position": position})
            prompt, *_ = await env.reset(None)
            for action in TEXT.actions[prompt]:
                total += (await env.step([{"role": "assistant", "content": action}]))[1]
            await env.close()
        return total

    return asyncio.run(play())


def inspect_ai(num: int) -> float:
    """Evaluates a mock model of Inspect AI's."""
    import inspect_ai as library
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from agentpeft.apps.drivers.inspect_task import make_inspect_task

    def answer(messages: list[Any], *_: Any) -> ModelOutput:
        num_said = sum(message.role == "assistant" for message in messages)
        call = TOOLS.call(messages[0].text, num_said)
        output = ModelOutput.for_tool_call("mockllm/model", str(call.name), call.arguments)
        output.usage = ModelUsage()
        return output

    model = get_model("mockllm/model", custom_outputs=answer)
    task = make_inspect_task(GAME, num)
    (log,) = library.eval(task, model, display="none", log_dir=tempfile.mkdtemp())
    return sum(score.value for each in log.samples for score in each.scores.values())


def verifiers(num: int) -> float:
    """Evaluates by verifiers' own runner: a harness's process for each episode, and a server."""
    from peers_at_play import evaluate_by_verifiers

    os.chdir(tempfile.mkdtemp())  # where it writes what it did
    calls = {
        p: [TOOLS.call(p, turn) for turn in range(len(TOOLS.actions[p]))] for p in TOOLS.actions
    }
    returns, _ = evaluate_by_verifiers(calls, num)
    return sum(returns)


@cache
def model_folder() -> str:
    """Returns a folder with the tokenizer and the shape of the built-in model; without weights."""
    from agentpeft.policies.models.tiny import make_tiny_config, train_tokenizer
    from agentpeft.policies.settings.config import TinySettings

    folder, tiny = tempfile.mkdtemp(), TinySettings()
    train_tokenizer(TEXT.prompts, tiny).save_pretrained(folder)
    make_tiny_config(tiny).save_pretrained(folder)
    return folder


def trl_rollout(num: int) -> float:
    """Plays batches of 10 episodes as TRL's `rollout_func`; what is said is told, not sampled."""
    import numpy as np
    from transformers import AutoTokenizer

    from agentpeft.apps.drivers.trl_environment import make_rows
    from agentpeft.apps.drivers.trl_rollout import TrlRollout
    from agentpeft.policies.messages import Completion, StopReason

    class Scripted(TrlRollout):
        def _generate(self, trainer: Any, contexts: Any) -> list[Completion]:
            del trainer
            return [self._answer(ids.tolist()) for ids in contexts]

        def _answer(self, ids: list[int]) -> Completion:
            begun = next(each for each in turns if list(each) == ids[: len(each)])
            said = self._chat.encode_action(turns[begun][ids[len(begun) :].count(begun[-1])])
            return Completion(said, np.zeros(len(said), np.float32), StopReason.STOP_TOKEN, 0)

    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    rollout = Scripted(GAME, tokenizer=tokenizer, max_new_tokens=1000)
    turns = {tuple(rollout._chat.begin(p).tolist()): TEXT.actions[p] for p in TEXT.prompts[:num]}
    prompts = [row["prompt"] for row in make_rows(num)]
    trainer, total = SimpleNamespace(max_completion_length=MAX_TOKENS), 0.0
    for start in range(0, num, 10):
        total += sum(rollout(prompts[start : start + 10], trainer)["episode_return"])
    return total


def token_env(num: int) -> float:
    """Plays token by token, as RLlib does."""
    from agentpeft.apps.drivers.token_env import TokenEnv

    env = TokenEnv(
        {"game": GAME, "model": model_folder(), "max_tokens": 2000, "max_new_tokens": 1000}
    )
    total = 0.0
    for task, prompt in zip(TEXT.tasks[:num], TEXT.prompts, strict=False):
        env.reset(options={"task": task})
        for action in TEXT.actions[prompt]:
            total += sum(env.step(token)[1] for token in env._chat.encode_action(action))
    return total


def rllib_runner(num: int) -> float:
    """Plays by RLlib's own runner, a token a step; what is said is told, not sampled."""
    from trainers_at_play import sample_by_rllib

    episodes, _ = sample_by_rllib(
        model_folder(), actions_of_a_runner(), num, max_tokens=4000, max_new_tokens=3000
    )
    return float(sum(episode.get_return() for episode in episodes))


@cache
def actions_of_a_runner() -> dict[str, list[str]]:
    """Returns the oracle's actions by prompt, as RLlib's runner resets its environment."""
    from trainers_at_play import actions_as_a_runner_resets

    actions: dict[str, list[str]] = actions_as_a_runner_resets(NUM_EPISODES)
    return actions


def torchrl_gym(num: int) -> float:
    """Plays through TorchRL's `GymEnv`, step by step."""
    from torchrl.envs import GymEnv

    env, total = GymEnv(f"agentpeft.envs:{GAME}"), 0.0
    for task, prompt in zip(TEXT.tasks[:num], TEXT.prompts, strict=False):
        now = env.reset(options={"task": task})
        for action in TEXT.actions[prompt]:
            now = env.step(now.set("action", action))["next"]
            total += now["reward"].item()
    return total


@cache
def actions_of_seeds() -> list[list[str]]:
    """Returns the oracle's actions after a reset to each seed."""
    env = TEXT.env.unwrapped
    actions = []
    for seed in range(NUM_EPISODES):
        env.reset(seed=seed)
        actions.append(list(env.oracle_actions(env.task)))
    return actions


@cache
def served() -> str:
    """Returns the address of a server that lives as long as this process."""
    command = [sys.executable, "-m", "agentpeft.launch.cli", "serve", GAME, "--port", "0"]
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
    atexit.register(server.terminate)
    assert server.stdout is not None
    return f"{json.loads(server.stdout.readline())['url']}/{GAME}"


def openenv_client(num: int) -> float:
    """Plays as OpenEnv's client, one session, on a server in another process."""
    from openenv.core import GenericEnvClient

    total = 0.0
    with GenericEnvClient(served()).sync() as client:
        for seed, actions in enumerate(actions_of_seeds()[:num]):
            client.reset(seed=seed)
            total += sum(client.step({"text": action}).reward for action in actions)
    return total


def agilerl(num: int) -> float:
    """Plays by AgileRL's client and turn loop, on a server in another process."""
    import agilerl as library

    library.HAS_LLM_DEPENDENCIES = True  # what is left out is for GPUs
    import torch
    from agilerl.llm_envs import RolloutHarness
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    names = {"action_field": "text", "observation_field": "text"}
    env = RolloutHarness(served(), tokenizer, 4, max_model_len=MAX_TOKENS, **names)
    total = 0.0
    for seed, actions in enumerate(actions_of_seeds()[:num]):
        env.reset(seed=seed)
        for action in actions:
            said = torch.tensor([[*tokenizer.encode(action), tokenizer.eos_token_id]])
            env.step(torch.cat([env.current_prompt["input_ids"], said], 1))
        total += sum(env.turn_rewards)
    env.close()
    return total


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
    tools = (tool_episode, openai_tools, trl_tools, mcp_stdio, langgraph, inspect_ai, verifiers)
    texts = (skyrl_gym, gem, swift, torchrl_gym, trl_rollout, token_env, rllib_runner)
    drivers = (*tools, *texts, openenv_client, agilerl)
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
