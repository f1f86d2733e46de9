"""OS-interaction's task: an episode's set-up and the conditions of success."""

from dataclasses import dataclass
from typing import Literal

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.os_interaction.grading.answers import AnswerKind, ExpectedAnswer
from agentpeft.envs.os_interaction.grading.state import State
from agentpeft.envs.tasks.task import Task

Language = Literal["bash", "python", "c", "c++"]

_STARTS = {
    "python": ("python3 -", ""),
    "c": ("gcc -x c -o /tmp/program - -lm", "\n/tmp/program"),
    "c++": ("g++ -x c++ -o /tmp/program -", "\n/tmp/program"),
}


@dataclass(frozen=True)
class Script:
    """A program of a task's data."""

    source: str
    language: Language = "bash"

    def to_command(self) -> str:
        """Returns what runs the program in a bash shell."""
        if self.language == "bash":
            return self.source
        start, end = _STARTS[self.language]
        return f"{start} <<'END_OF_PROGRAM'\n{self.source}\nEND_OF_PROGRAM{end}"


Check = Script | AnswerKind
"""A script that must exit with 0, or how the answer and what the last script printed compare.

A script's arguments are the answer ("" without one) and what each script before it has printed.
"""


@dataclass(frozen=True)
class Verdict:
    """The conditions of success, all of which must hold.

    `is_live`: the checks look at the episode's processes, so they run before these are ended.
    """

    state: State | None = None
    answer: ExpectedAnswer | None = None
    checks: tuple[Check, ...] = ()
    is_live: bool = False

    @property
    def is_empty(self) -> bool:
        """True if there is no condition."""
        return self.state is None and self.answer is None and not self.checks

    @property
    def wants_answer(self) -> bool:
        """True if there is an answer to compare."""
        return self.answer is not None or any(isinstance(check, str) for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class OSTask(Task):
    """A shell task. `gold` does it, or prints the answer; None where the data have no such script.

    `setup` runs before the agent, in a process of its own. `start` is a command in the agent's own
    shell, before its first turn. `wants_answer`: a right end needs an answer.
    """

    verdict: Verdict
    setup: Script | None = None
    start: str | None = None
    gold: Script | None = None
    wants_answer: bool = False

    def __post_init__(self) -> None:
        """Raises: DataError where nothing says what is right."""
        if self.verdict.is_empty:
            raise DataError(f"task {self.task_id} has nothing that says what is right")
