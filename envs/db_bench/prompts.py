"""DB-bench's prompts: `full` explains the game, `tools` too, `compact` spends fewest tokens."""

from collections.abc import Sequence

from agentpeft.envs.core.text_env import EpisodeConfig
from agentpeft.envs.db_bench.backends.protocol import Table, quote_name
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.words import RESERVED
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.generated_env import PromptStyle

_FULL = """\
You work on a MySQL database. You are given its tables and a task: a question to answer from the \
data, or a change to make to them. You have {turns}; the last one must be your answer.

{actions}
{schema}

Task: {instruction}"""

_TEXT_ACTIONS = """\
Each turn, write exactly one of these two actions. You may think first.

1. Run one SQL statement. You then see its result, or the error message.
Action: Operation
```sql
SELECT ...
```

2. Give the final answer, which ends the episode.
Action: Answer
Final Answer: [(value, value, ...), ...]

Rules:
- Statements follow MySQL's syntax and {commit}.
- To a question, the final answer is the list of result rows, exactly as a query prints them, with \
the columns asked for in the order asked for. If the task names an order, the rows must be in it.
- After a change, the contents of the tables count. Still give a final answer, such as: done
- Any other text, without one of the two actions, {invalid}.

Example: with a table `{table}` (`name` TEXT, `{column}` INT) and the question "How many pets are \
older than 3?" you could write
Action: Operation
```sql
SELECT COUNT(*) FROM {mark}{table}{mark} WHERE {mark}{column}{mark} > 3
```
which shows [(2,)], and then
Action: Answer
Final Answer: [(2,)]
"""

_TOOL_CALLS = """\
Each turn, call exactly one tool: execute_sql to run SQL, or submit to give the final answer, \
which ends the task. You may think first.

Rules:
- Statements follow MySQL's syntax and {commit}.
- To a question, the final answer is the list of result rows, exactly as a query prints them, with \
the columns asked for in the order asked for. If the task names an order, the rows must be in it.
- After a change, the contents of the tables count. Still submit an answer, such as: done
- A turn without a call of one of the tools {invalid}.
"""

_COMPACT = """\
{schema}
{instruction}
{turns}: "Action: Operation" with a ```sql block, or "Action: Answer" with "Final Answer: {answer}"\
"""


def render_prompt(
    task: DBBenchTask, style: PromptStyle, config: EpisodeConfig, autocommit: bool
) -> str:
    """Returns the first observation of an episode."""
    turns = "1 turn" if config.max_turns == 1 else f"{config.max_turns} turns"
    if style == "compact":
        schema = "\n".join(_compact_table(table) for table in task.tables)
        answer = "done" if task.is_write else "[(value, ...), ...]"
        return _COMPACT.format(
            schema=schema, instruction=task.instruction, turns=turns, answer=answer
        )
    actions = _TOOL_CALLS if style == "tools" else _TEXT_ACTIONS
    special = _list_special(task.tables)
    # Small models write names as the example has them, whatever the errors say
    table, column, mark = ("my pets", "age (years)", "`") if special else ("pets", "age", "")
    return _FULL.format(
        turns=turns,
        actions=actions.format(
            invalid="ends the episode in failure" if config.invalid_ends else "costs a turn",
            commit="are committed at once" if autocommit else "count only after a COMMIT",
            table=table,
            column=column,
            mark=mark,
        ),
        schema="\n".join([_full_table(table) for table in task.tables] + special),
        instruction=task.instruction,
    )


def _full_table(table: Table) -> str:
    columns = ", ".join(f"{quote_name(column.name)} {column.type}" for column in table.columns)
    return f"Table {quote_name(table.name)} has the columns {columns}."


def _list_special(tables: Sequence[Table]) -> list[str]:
    """Returns a sentence about the names that need backticks; none where no name does."""
    names = [name for table in tables for name in (table.name, *(c.name for c in table.columns))]
    special = [quote_name(name) for name in dict.fromkeys(names) if not _is_plain(name)]
    return [f"In SQL, write these names in backticks: {', '.join(special)}."] if special else []


def _compact_table(table: Table) -> str:
    columns = ", ".join(
        f"{_quote_if_needed(column.name)} {column.type}" for column in table.columns
    )
    return f"{_quote_if_needed(table.name)}({columns})"


def _quote_if_needed(name: str) -> str:
    return name if _is_plain(name) else quote_name(name)


def _is_plain(name: str) -> bool:
    return name.isidentifier() and name.isascii() and name.upper() not in RESERVED
