"""OS-interaction's actions as tools."""

from agentpeft.envs.core.actions import InvalidAction
from agentpeft.envs.os_interaction.actions import (
    Command,
    command_action,
    finish_action,
    parse_action,
)
from agentpeft.envs.tools.tool_table import ToolCall, ToolTable


def bash(command: str) -> str:
    """Runs commands in the shell, and shows what they print.

    Args:
        command: The commands, as a script of one line or more.
    """
    return command_action(command)


def submit(answer: str | None = None) -> str:
    """Ends the task: with the answer to a question, or without one, once all is done.

    Args:
        answer: Only what was asked for: the number, the name or the path, without other words.
            Left out where the task asks for no answer.
    """
    return finish_action(answer)


def _find_call(action: str) -> ToolCall:
    match parse_action(action):
        case Command(script):
            return ToolCall("bash", {"command": script})
        case InvalidAction(problem):
            raise ValueError(f"{action!r:.80} is no action: {problem}")
        case end:
            return ToolCall("submit", {} if end.answer is None else {"answer": end.answer})


TOOLS = ToolTable(
    bash,
    submit,
    find_call=_find_call,
    env_kwargs={"prompt": "tools"},
)
