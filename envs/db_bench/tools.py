"""DB-bench's actions as tools."""

from agentpeft.envs.core.actions import InvalidAction
from agentpeft.envs.db_bench.actions import RunSQL, answer_action, operation_action, parse_action
from agentpeft.envs.tools.tool_table import ToolCall, ToolTable


def execute_sql(sql: str) -> str:
    """Runs SQL on the database, and shows the result's rows or the error message.

    Args:
        sql: One statement in MySQL's syntax, or several with ; between them.
    """
    return operation_action(sql)


def submit(answer: str) -> str:
    """Gives the final answer, which ends the task.

    Args:
        answer: To a question, the list of result rows as a query prints them, such as
            [(1, 'a'), (2, 'b')]. After a change, done.
    """
    return answer_action(answer)


def _find_call(action: str) -> ToolCall:
    match parse_action(action):
        case RunSQL(sql):
            return ToolCall("execute_sql", {"sql": sql})
        case InvalidAction(problem):
            raise ValueError(f"{action!r:.80} is no action: {problem}")
        case answer:
            return ToolCall("submit", {"answer": answer.text})


TOOLS = ToolTable(
    execute_sql,
    submit,
    find_call=_find_call,
    env_kwargs={"prompt": "tools"},
)
