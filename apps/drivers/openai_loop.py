"""`play_by_tools`: an environment's tasks for any server of OpenAI's API with tools."""

from typing import Any

from agentpeft.apps.drivers.tool_episode import ToolEpisode
from agentpeft.policies.rollout.environments import Env


def play_by_tools(client: Any, model: str, env: Env, prompt: str, **options: Any) -> ToolEpisode:
    """Plays the episode that `env` has been reset to, and returns it, its answer graded.

    `client` is an `openai.OpenAI`, or what has its `chat.completions.create`; `options` are more of
    that call's. Several calls in a message are played one after another; a message without one
    ends the episode, whose reward then is that of `return_if_stopped`. Raises: EnvFault, and what
    the client raises.
    """
    episode = ToolEpisode(env)
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    while not episode.is_over:
        response = client.chat.completions.create(
            model=model, messages=messages, tools=episode.tools.to_openai(), **options
        )
        said = response.choices[0].message
        message = said.model_dump(include={"role", "content", "tool_calls"})
        if not message["tool_calls"]:
            break
        messages.append(message)
        messages += episode.call_openai(message["tool_calls"])
    return episode
