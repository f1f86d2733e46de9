"""DB-bench's action syntax: an SQL block to run, or the final answer."""

import re
from dataclasses import dataclass

from agentpeft.envs.core.actions import InvalidAction, find_block, write_block

_MARKER = re.compile(r"Action:[ \t]*(Operation|Answer)\b")
_FINAL_ANSWER = "Final Answer:"


@dataclass(frozen=True)
class RunSQL:
    """Run this SQL."""

    sql: str


@dataclass(frozen=True)
class Answer:
    """Finish with this answer."""

    text: str


def parse_action(text: str) -> RunSQL | Answer | InvalidAction:
    r"""Returns what the first `Action:` marker of a message asks for; text before it is thought.

    >>> parse_action("Action: Answer\nFinal Answer: 42")
    Answer(text='42')
    """
    marker = _MARKER.search(text)
    if marker is None:
        return InvalidAction('no "Action: Operation" or "Action: Answer" found')
    body = text[marker.end() :]
    if marker.group(1) == "Operation":
        sql = find_block("sql", body, may_be_inline=True)
        if sql is None:
            return InvalidAction('"Action: Operation" needs a ```sql block after it')
        return RunSQL(sql.strip())
    _, marker_text, answer = body.partition(_FINAL_ANSWER)
    if not marker_text:
        return InvalidAction('"Action: Answer" needs a line "Final Answer: ..." after it')
    return Answer(answer.strip())


def operation_action(sql: str) -> str:
    """Returns the action that runs `sql`."""
    return f"Action: Operation\n{write_block('sql', sql)}"


def answer_action(answer: str) -> str:
    """Returns the action that finishes with `answer`."""
    return f"Action: Answer\n{_FINAL_ANSWER} {answer}"
