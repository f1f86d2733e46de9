"""Plays the oracle's episodes through one of the other libraries; run in `.venv-drivers`.

`python peers_at_play.py LIBRARY` prints JSON: returns, and all that a model was shown.
"""

import asyncio
import json
import sys
from pathlib import Path

from needed_blocks import import_recipe
from oracle_server import next_call, oracle_calls, oracle_server

GAME, NUM_TASKS = "AgentPEFT/DBBench-v0", 3
PAGE = "docs/training/drivers.md"


def actions_by_prompt():
    """Returns the oracle's actions, as text, for the first tasks' prompts of a text agent."""
    from agentpeft.policies.rollout.environments import EnvPool

    pool, actions = EnvPool(GAME, {}, (0,)), {}
    for position in range(NUM_TASKS):
        task = pool.task_at(position)
        env, prompt = pool.begin(position, task)
        actions[prompt] = env.unwrapped.oracle_actions(task)
        pool.give_back(env)
    return actions


def play_gem():
    import gem
    import gymnasium

    import_recipe(PAGE, "import gem", Path.cwd())  # it registers the game
    env, own = gem.make("agentpeft:db-bench"), gymnasium.make(GAME).unwrapped
    returns, shown = [], []
    for seed in range(NUM_TASKS):
        prompt, info = env.reset(seed=seed)
        assert own.reset(seed=seed)[0] == prompt
        total, over = 0.0, False
        for action in own.oracle_actions(own.task):
            said, reward, over, cut, info = env.step(f"<think>Action: Answer</think>\n\n{action}")
            total += reward
            shown += [prompt, said, info]
        assert over and not cut
        returns.append(total)
    env.spawn().close()
    env.close()
    return returns, shown


def play_skyrl():
    import skyrl_gym

    import_recipe(PAGE, "import skyrl_gym", Path.cwd())  # it registers the game
    actions, returns, shown = actions_by_prompt(), [], []
    for position in range(NUM_TASKS):
        extras = {"position": position}
        env = skyrl_gym.make("agentpeft", env_config={"game": GAME}, extras=extras)
        prompt, info = env.init([{"role": "user", "content": ""}])
        total, done = 0.0, False
        for action in actions[prompt[-1]["content"]]:
            out = env.step(action)
            total, done = total + out["reward"], out["done"]
            shown += [prompt, info, out["observations"], out["metadata"]]
        assert done
        env.close()
        returns.append(total)
    return returns, shown


def play_langgraph():
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    from agentpeft.apps.drivers.langgraph_agent import make_graph
    from agentpeft.apps.drivers.tool_episode import ToolEpisode, tool_kwargs
    from agentpeft.policies.rollout.environments import EnvPool

    calls, _ = oracle_calls(GAME, NUM_TASKS)
    shown = []

    class Oracle(BaseChatModel):
        _llm_type = "oracle"

        def bind_tools(self, tools, **_):
            shown.extend(tools)
            return self

        def _generate(self, messages, stop=None, run_manager=None, **_):
            texts = [message.content for message in messages]
            shown.extend(texts)
            call = next_call(calls, texts, sum(isinstance(m, AIMessage) for m in messages))
            asked = [{"name": call.name, "args": dict(call.arguments), "id": "call"}]
            said = AIMessage("", tool_calls=asked)
            return ChatResult(generations=[ChatGeneration(message=said)])

    class Sloppy(Oracle):
        """Calls what there is not, then calls without arguments."""

        def _generate(self, messages, stop=None, run_manager=None, **_):
            said = AIMessage(
                "",
                tool_calls=[{"name": "fly", "args": {}, "id": "1"}],
                invalid_tool_calls=[{"name": "submit", "args": "{", "id": "2", "error": None}],
            )
            return ChatResult(generations=[ChatGeneration(message=said)])

    def play(model, position):
        env, prompt = pool.begin(position, pool.task_at(position))
        episode = ToolEpisode(env)
        state = make_graph(model, episode).invoke({"messages": [("user", prompt)]})
        pool.give_back(env)
        return episode.return_if_stopped(), state["messages"]

    pool = EnvPool(GAME, tool_kwargs(GAME, {}), (0,))
    returns = [play(Oracle(), position)[0] for position in range(NUM_TASKS)]
    fallen, messages = play(Sloppy(), 0)
    assert fallen == -0.1 and [m.type for m in messages] == ["human", "ai", "tool", "tool"]
    assert messages[2].content.startswith('Invalid call: no tool "fly"; call a tool: execute_sql')
    assert messages[3].content == "The episode is over."
    return returns, shown


def play_inspect():
    import inspect_ai
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from agentpeft.apps.drivers.inspect_task import make_inspect_task

    calls, _ = oracle_calls(GAME, NUM_TASKS)
    shown = []

    def answer(messages, tools, *_):
        texts = [message.text for message in messages]
        shown.extend([*texts, *(tool.model_dump(mode="json") for tool in tools)])
        num_said = sum(message.role == "assistant" for message in messages)
        call = next_call(calls, texts, num_said)
        output = ModelOutput.for_tool_call("mockllm/model", call.name, call.arguments)
        output.usage = ModelUsage()  # else a tokenizer is downloaded to count
        return output

    model = get_model("mockllm/model", custom_outputs=answer)
    (log,) = inspect_ai.eval(make_inspect_task(GAME, NUM_TASKS), model, display="none")
    assert log.status == "success", log.error
    scores = [score for sample in log.samples for score in sample.scores.values()]
    assert {score.answer for score in scores} == {"success"}
    return [score.value for score in scores], shown


def evaluate_by_verifiers(calls, num_tasks):
    """Returns what verifiers' own runner gives the oracle, and what the model was sent.

    It leaves its files, and a module with the taskset, in the present folder.
    """
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    sys.path.append(str(Path.cwd()))
    module = "from agentpeft.apps.drivers.verifiers_tasks import GymTaskset, ToolHarness\n"
    module += "__all__ = ['GymTaskset', 'ToolHarness']\n"
    Path("agentpeft_tasks.py").write_text(module, encoding="utf-8")
    with oracle_server(calls) as server:
        config = EvalConfig(
            env={
                "taskset": {"id": "agentpeft-tasks", "game": GAME, "num_tasks": num_tasks},
                "agent": {"runtime": {"type": "subprocess"}},  # else in a cloud
            },
            model="oracle",
            client={"base_url": server.url, "api_key_var": "PATH"},
            push=False,
            rich=None,
        )
        episodes = asyncio.run(run_eval(config))
        assert all(episode.ok for episode in episodes), [e.errors for e in episodes]
        returns = [trace.reward for each in episodes for trace in each.traces]
        return returns, server.bodies


def play_verifiers():
    import verifiers.v1 as vf

    assert vf.__name__
    calls, _ = oracle_calls(GAME, NUM_TASKS)
    return evaluate_by_verifiers(calls, NUM_TASKS)


if __name__ == "__main__":
    returns, shown = globals()[f"play_{sys.argv[1]}"]()
    sys.stdout.write(json.dumps({"returns": returns, "shown": json.dumps(shown)}) + "\n")
