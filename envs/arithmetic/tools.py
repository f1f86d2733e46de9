"""Arithmetic's answer as a tool."""

from agentpeft.envs.tools.tool_table import ToolCall, ToolTable


def submit(answer: str) -> str:
    """Gives the answer.

    Args:
        answer: The number, written as the task asks for.
    """
    return answer


TOOLS = ToolTable(
    submit,
    find_call=lambda action: ToolCall("submit", {"answer": action}),
    env_kwargs={"prompt": "tools"},
)
