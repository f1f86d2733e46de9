"""GSM8K's answer as a tool."""

from agentpeft.envs.tools.tool_table import ToolCall, ToolTable

_MARKER = "####"


def submit(answer: str) -> str:
    """Gives the final answer, which ends the task.

    Args:
        answer: The number alone, such as 3.5.
    """
    return f"{_MARKER} {answer}"


def _find_call(action: str) -> ToolCall:
    """Returns the call of a solution that ends in `#### N`; its steps are no part of a call."""
    return ToolCall("submit", {"answer": action.rpartition(_MARKER)[2].strip()})


TOOLS = ToolTable(
    submit,
    find_call=_find_call,
    env_kwargs={"prompt": "tools"},
)
