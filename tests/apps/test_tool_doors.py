"""The oracle plays through other people's libraries, and is graded as in the environment itself."""

import json
import sys

import gymnasium
import pytest
from needed_blocks import play_script, run_block
from openai import OpenAI
from oracle_server import oracle_calls, oracle_server

from agentpeft.apps.drivers.openai_loop import play_by_tools
from agentpeft.apps.drivers.tool_episode import tool_kwargs
from agentpeft.envs import Outcome
from agentpeft.policies.rollout.environments import EnvPool

PAGE = "docs/training/drivers.md"
GAME, NUM_TASKS = "AgentPEFT/DBBench-v0", 3


def test_an_openai_client_plays_and_is_told_nothing_of_the_task():
    calls, secrets = oracle_calls(GAME, NUM_TASKS)
    pool = EnvPool(GAME, tool_kwargs(GAME, {}), (0,))
    with oracle_server(calls) as server, OpenAI(base_url=server.url, api_key="-") as client:
        for position in range(NUM_TASKS):
            env, prompt = pool.begin(position, pool.task_at(position))
            episode = play_by_tools(client, "oracle", env, prompt, temperature=0.0)
            assert (episode.outcome, episode.return_if_stopped()) == (Outcome.SUCCESS, 1.0)
            pool.give_back(env)
        assert not any(secret in body for secret in secrets for body in server.bodies)
        (call,) = json.loads(server.bodies[-1])["messages"][1]["tool_calls"]
        assert call["function"]["name"] == "execute_sql"
    pool.close()


@pytest.mark.slow
def test_the_documentation_s_client_plays(tmp_path, monkeypatch):
    env = gymnasium.make(GAME, **tool_kwargs(GAME, {})).unwrapped
    prompt, _ = env.reset(seed=0)
    calls = {prompt: list(map(env.get_tools().find_call, env.oracle_actions(env.task)))}
    with oracle_server(calls) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "-")
        assert run_block(PAGE, "play_by_tools", sys.executable, tmp_path, "") == "success 1.0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "after", "said"),
    [
        ("verifiers_tasks", "print(GymTaskset.__name__)", "GymTaskset"),
        ("inspect_task", "print(len(task.dataset))", "100"),
        (
            "import skyrl_gym",
            "print(env.init([{}])[0][0]['content'][:21])",
            "You work on a MySQL d",
        ),
    ],
)
def test_the_documentation_s_blocks_run(word, after, said, tmp_path, drivers_python):
    assert run_block(PAGE, word, drivers_python, tmp_path, after) == said


@pytest.mark.slow
def test_the_documentation_s_graph_plays(tmp_path, drivers_python):
    before = """
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self

call = {"name": "submit", "args": {"answer": "no"}, "id": "1"}
model = Scripted(messages=iter([AIMessage("", tool_calls=[call])]))
"""
    said = run_block(PAGE, "make_graph", drivers_python, tmp_path, "", before=before)
    assert said == "failure -0.1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "library", ["skyrl", "langgraph", pytest.param("inspect", marks=pytest.mark.long), "verifiers"]
)
def test_the_oracle_earns_the_same_through_another_library(library, tmp_path, drivers_python):
    returns, shown = play_script("peers_at_play.py", [library], drivers_python, tmp_path)
    assert returns == [1.0] * NUM_TASKS
    _, secrets = oracle_calls(GAME, NUM_TASKS)
    assert shown and not any(secret in shown for secret in secrets)
