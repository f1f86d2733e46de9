"""What an attack is: messages of an agent, the task it plays, and what must come of it.

An entry is one item of a topic's table: a name, and what the agent sends. A text is one operation
(SQL, a script of bash, or a whole message if it has `Action:` or `Act:`, in whatever letters), a list is
several turns, and `Try` says more:

    TIME.entries({"sleeping": "SELECT SLEEP(100)"})

What holds for every entry is in `playing.py`. `@secret@`, `@victim@`, `@port@`, `@abstract@`,
`@address@` and `@mark@` stand for what `host.py` has put on the host.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentpeft.envs.db_bench.actions import answer_action, operation_action
from agentpeft.envs.os_interaction.actions import command_action, finish_action

Game = Literal["sql", "shell", "arithmetic", "gsm8k"]

_IS_MESSAGE = re.compile(r"ct(?:ion)?:", re.IGNORECASE)
_ENDS = re.compile(r"Action:[ \t]*Answer\b|Act:[ \t]*(?:finish\b|answer[ \t]*\()")


@dataclass(frozen=True)
class Try:
    """An entry that says more than its operations.

    `task`: the task's id, None for the game's first. `shows`: a pattern that the last observation
    must have. `is_refused`: the last operation must fail. `ends`: whether the agent finishes in the
    end, if it has not. `may_succeed`: the outcome may be success, for messages that are harmless.
    `may_show`: a name of the machinery that a function of the server tells anybody. `cpu_slack_s`:
    how much more processor time than its limit a step may take.
    """

    operations: str | Sequence[str]
    task: str | None = None
    shows: str = ""
    is_refused: bool = False
    ends: bool = True
    may_succeed: bool = False
    may_show: str = ""
    cpu_slack_s: float = 1.0


@dataclass(frozen=True)
class Attack:
    """One attack: its messages in turn, and what is expected besides what holds for all."""

    topic: "Topic"
    name: str
    messages: tuple[str, ...]
    expected: Try

    def __str__(self) -> str:
        """The topic and the name, as a test is called."""
        return f"{self.topic.name}: {self.name}".replace(" ", "-")


@dataclass(frozen=True)
class Topic:
    """A class of attacks: what is tried, and what holds on each backend or sandbox."""

    game: Game
    name: str
    tried: str
    holds: Mapping[str, str]

    def entries(self, table: Mapping[str, str | Sequence[str] | Try]) -> list[Attack]:
        """Returns the attacks of a table of names and operations."""
        return [self._make(name, entry) for name, entry in table.items()]

    def _make(self, name: str, entry: str | Sequence[str] | Try) -> Attack:
        expected = entry if isinstance(entry, Try) else Try(entry)
        operations = expected.operations
        messages = [operations] if isinstance(operations, str) else list(operations)
        if self.game in ("sql", "shell"):
            wrap = operation_action if self.game == "sql" else command_action
            messages = [text if _IS_MESSAGE.search(text) else wrap(text) for text in messages]
            if expected.ends and not _ENDS.search(messages[-1]):
                messages.append(
                    answer_action("done") if self.game == "sql" else finish_action(None)
                )
        return Attack(self, name, tuple(messages), expected)
