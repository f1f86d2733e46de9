"""`ToolEpisode`: an episode that is played by tool calls."""

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium

from agentpeft.envs.core.rewards import Outcome
from agentpeft.envs.core.text_env import TextEnv
from agentpeft.envs.tools.tool_table import ANY_TEXT, ToolCall, find_tools

OVER = "The episode is over."


class ToolEpisode:
    """The episode that an environment has just been reset to, call by call.

    A model sees what `call` returns, and nothing else: neither the reward nor `info`. An answer is
    never empty, since some protocols know no empty one.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        """`env` is at the start of an episode; one that is no `TextEnv` has the tool `act`."""
        self._env = env
        text_env = env.unwrapped
        self.tools = text_env.get_tools() if isinstance(text_env, TextEnv) else ANY_TEXT
        self.episode_return = 0.0
        self.outcome = Outcome.ONGOING
        self.is_over = False
        self.fault: Exception | None = None

    def call(self, call: ToolCall) -> str:
        """Plays a call as one turn, and returns its answer. Raises: what the environment raises."""
        if self.is_over:
            return OVER
        problem = self.tools.find_problem(call)
        try:
            action = self.tools.to_action(call)
            observation, reward, terminated, truncated, info = self._env.step(action)
        except Exception as fault:
            self.fault, self.is_over, self.outcome = fault, True, Outcome.UNKNOWN
            raise
        self.episode_return += float(reward)
        self.is_over = terminated or truncated
        self.outcome = info.get("outcome", self.outcome)
        return compose_answer(observation, problem, is_over=self.is_over)

    def call_openai(self, tool_calls: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
        """Plays the `tool_calls` of an OpenAI message in turn, and returns the messages after it.

        Each call is a turn of its own. Raises: what the environment raises.
        """
        return [
            {
                "role": "tool",
                "tool_call_id": str(call.get("id", "")),
                "content": self.call(ToolCall.from_openai(call)),
            }
            for call in tool_calls
        ]

    def return_if_stopped(self) -> float:
        """Returns the episode's return if the agent calls no more.

        One that is not over then ends as by an invalid action. Raises: what an earlier call raised.
        """
        if self.fault is not None:
            raise self.fault
        if self.is_over or not isinstance(self._env.unwrapped, TextEnv):
            return self.episode_return
        return self.episode_return + self._env.unwrapped.final_reward(Outcome.INVALID_ACTION)


def compose_answer(observation: str, problem: str | None, *, is_over: bool) -> str:
    """Returns the answer to a call; `problem` is what was wrong with it."""
    if problem is not None:
        observation = f"Invalid call: {problem}."
    return observation or (OVER if is_over else "(no output)")


def tool_kwargs(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `kwargs` with the settings by which an environment's prompt explains its tools.

    Settings in `kwargs` win. Raises: SettingsError on an unknown id.
    """
    return {**find_tools(env_id).env_kwargs, **kwargs}
