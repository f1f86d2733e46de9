"""The tools of every environment: their schemas, what calls become, and whole episodes of calls."""

import json

import gymnasium
import pytest
from toy_env import EchoEnv

from agentpeft.apps.drivers.tool_episode import OVER, ToolEpisode, tool_kwargs
from agentpeft.envs import ENV_IDS, Outcome
from agentpeft.envs.arithmetic.tools import TOOLS as ARITHMETIC
from agentpeft.envs.db_bench.actions import RunSQL, parse_action
from agentpeft.envs.db_bench.tools import TOOLS as DB_BENCH
from agentpeft.envs.os_interaction.actions import Command
from agentpeft.envs.os_interaction.actions import parse_action as parse_shell_action
from agentpeft.envs.os_interaction.tools import TOOLS as OS_INTERACTION
from agentpeft.envs.tools.tool_table import ANY_TEXT, Tool, ToolCall

MALFORMED = [
    (ToolCall("drop_table", {}), 'no tool "drop_table"; call a tool: execute_sql(sql), '),
    (ToolCall(None, "hm"), "no tool null; "),
    (ToolCall(["submit"], {}), 'no tool ["submit"]; '),
    (ToolCall("submit", {}), "submit needs the argument 'answer'"),
    (ToolCall("submit", None), "submit: arguments must be a JSON object, got null"),
    (ToolCall("submit", "(1)"), 'submit: arguments must be a JSON object, got "(1)"'),
    (ToolCall("submit", {"answer": [[1]]}), "submit: 'answer' must be a string, got [[1]]"),
    (ToolCall("submit", {"answer": True}), "submit: 'answer' must be a string, got true"),
    (ToolCall("submit", {"answer": 10**5000}), "submit: 'answer' must be a string, got a int"),
    (ToolCall("submit", {"answer": "1", "why": ""}), 'submit has no argument "why"; call a tool: '),
    (ToolCall("submit", {3: "1"}), "submit has no argument 3; "),
]


@pytest.fixture(params=ENV_IDS)
def env(request):
    if "OS" in request.param:
        request.getfixturevalue("any_sandbox")
    env = gymnasium.make(request.param, **tool_kwargs(request.param, {})).unwrapped
    yield env
    env.close()


def test_the_oracle_s_calls_are_its_actions_and_earn_the_same(env):
    for seed in range(5):
        env.reset(seed=seed)
        task, calls = env.task, list(map(env.get_tools().find_call, env.oracle_actions(env.task)))
        episode = ToolEpisode(env)
        said = [episode.call(call) for call in calls]
        assert (episode.outcome, episode.episode_return) == (Outcome.SUCCESS, 1.0), said
        assert all(said) and episode.is_over and episode.call(calls[0]) == OVER
        assert (env.episode.task, len(env.episode.turns)) == (task, len(calls))


def test_a_malformed_call_is_an_invalid_action(env):
    for call in (ToolCall(None, "hm"), ToolCall("submit", {"answer": [1]})):
        env.reset(seed=0)
        episode = ToolEpisode(env)
        assert episode.call(call).startswith("Invalid call: ")
        assert episode.is_over and episode.outcome is Outcome.INVALID_ACTION
        assert episode.episode_return == env.reward_config.final_reward(env.episode)


def test_the_prompt_and_the_answers_speak_of_tools_alone(env):
    said, _ = env.reset(seed=0)
    said += env.step("hm")[0]
    assert not any(word in said for word in ("Action:", "Act:", "####", "Reply", "reply"))


@pytest.mark.parametrize(("call", "problem"), MALFORMED)
def test_what_is_wrong_with_a_call_is_said(call, problem):
    said = DB_BENCH.find_problem(call)
    assert said is not None and said.startswith(problem) and len(said) < 200
    assert DB_BENCH.to_action(call) == ""


def test_a_tool_is_described_by_its_function():
    bash, submit = (each["function"] for each in OS_INTERACTION.to_openai())
    assert bash["description"] == "Runs commands in the shell, and shows what they print."
    about = "The commands, as a script of one line or more."
    assert bash["parameters"] == {
        "type": "object",
        "properties": {"command": {"type": "string", "description": about}},
        "required": ["command"],
        "additionalProperties": False,
    }
    assert (submit["name"], submit["parameters"]["required"]) == ("submit", [])
    assert submit["parameters"]["properties"]["answer"]["description"].endswith("for no answer.")


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ('{"answer": "46"}', "46"),
        ('{"answer": 46}', "46"),
        ('{"answer": 4.50}', "4.50"),
        ('{"answer": 1e3}', "1e3"),
        (f'{{"answer": {"9" * 5000}}}', "9" * 5000),
        ('{"answer": "46"', ""),
        ("[" * 100_000, ""),
        ("null", ""),
        ("", ""),
    ],
)
def test_openai_s_arguments_are_read_as_they_are_written(arguments, action):
    call = ToolCall.from_openai({"function": {"name": "submit", "arguments": arguments}})
    assert ARITHMETIC.to_action(call) == action


@pytest.mark.parametrize("tool_call", [{}, {"function": None}, {"function": {"arguments": "{}"}}])
def test_what_is_no_call_in_openai_s_format_is_malformed(tool_call):
    assert DB_BENCH.find_problem(ToolCall.from_openai(tool_call)) is not None


def test_sections_after_a_function_s_arguments_are_no_arguments():
    def add(a: str) -> str:
        """Adds one.

        Args:
            a: A number,
                as text.

        Returns:
            The sum.
        """
        return a

    assert Tool.build(add).parameters == {"a": "A number, as text."}


def test_a_call_without_arguments_needs_none():
    for call in (
        ToolCall.from_openai({"function": {"name": "submit", "arguments": ""}}),
        ToolCall("submit", {"answer": None}),
    ):
        assert OS_INTERACTION.to_action(call) == "Act: finish"


@pytest.mark.parametrize("code", ["SELECT '```'", "```sql\nSELECT 1\n```", "SELECT '`````'"])
def test_code_with_fences_in_it_arrives_whole(code):
    sql = DB_BENCH.to_action(ToolCall("execute_sql", {"sql": code}))
    assert parse_action(sql) == RunSQL(code)
    script = OS_INTERACTION.to_action(ToolCall("bash", {"command": code}))
    assert parse_shell_action(script) == Command(code)


def test_a_fence_of_any_length_is_found_in_no_time():
    for text in ("`" * 30_000 + "sql " + "x" * 30_000, "```sql ````sql " * 4000):
        parse_action(f"Action: Operation\n{text}")
        parse_shell_action(f"Act: bash\n{text.replace('sql ', 'bash' + chr(10))}")


def test_openai_s_calls_are_played_one_after_another():
    env = gymnasium.make("AgentPEFT/DBBench-v0").unwrapped
    env.reset(seed=0)
    calls = list(map(env.get_tools().find_call, env.oracle_actions(env.task)))
    message = [
        {"id": f"call-{i}", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for i, c in enumerate([*calls, calls[0]])
    ]
    episode = ToolEpisode(env)
    answers = episode.call_openai(message)
    assert [each["tool_call_id"] for each in answers] == ["call-0", "call-1", "call-2"]
    assert {each["role"] for each in answers} == {"tool"}
    assert answers[-1]["content"] == OVER and episode.return_if_stopped() == 1.0


def test_an_episode_that_stops_without_its_end_was_invalid():
    env = gymnasium.make("AgentPEFT/DBBench-v0").unwrapped
    env.reset(seed=0)
    episode = ToolEpisode(env)
    assert episode.return_if_stopped() == pytest.approx(-0.1)
    episode.call(ToolCall("execute_sql", {"sql": "SELECT 1"}))
    assert episode.return_if_stopped() == pytest.approx(-0.1) and not episode.is_over


def test_an_environment_without_tools_has_one_for_any_text():
    env = EchoEnv()
    assert env.get_tools() is ANY_TEXT and tool_kwargs("AgentPEFT/Mixture-v0", {}) == {}
    env.reset(seed=0)
    episode = ToolEpisode(env)
    for action in env.oracle_actions(env.task):
        episode.call(env.get_tools().find_call(action))
    assert episode.outcome is Outcome.SUCCESS


def test_tools_as_an_attribute_are_refused_with_what_to_do():
    with pytest.raises(TypeError, match=r"Old\.tools is not read: .* get_tools\(\)"):
        type("Old", (EchoEnv,), {"tools": ANY_TEXT})


def test_a_prompt_that_is_asked_for_stays():
    kwargs = tool_kwargs("AgentPEFT/DBBench-v0", {"prompt": "compact", "max_turns": 2})
    assert kwargs == {"prompt": "compact", "max_turns": 2}
