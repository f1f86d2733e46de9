"""A person who plays: what is typed, or piped in, becomes actions."""

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console

from agentpeft.apps.lab.playing.episode_view import show_answer, show_text
from agentpeft.envs import Task
from agentpeft.envs.db_bench.actions import answer_action, operation_action
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.os_interaction.actions import command_action, finish_action
from agentpeft.envs.os_interaction.tasks import OSTask
from agentpeft.policies.rollout.play import StepResult
from agentpeft.policies.rollout.scripted_play import ScriptedAgent

_FENCE = "```"
_MARK = "» "
_ANSWER = "answer"
_HELP = ("?", "help")


class TypedAgent(ScriptedAgent):
    """Plays what is typed, after actions that are given; shows what each action has led to.

    The end of the input ends the episode.
    """

    def __init__(
        self,
        console: Console,
        task: Task,
        given: Sequence[str] = (),
        max_turns: int | None = None,
    ) -> None:
        """`given`: the actions of the first turns. `max_turns` None: nobody knows."""
        super().__init__(self._say(given))
        self._console, self._task, self._max_turns = console, task, max_turns
        self.actions: list[str] = []

    def receive(self, result: StepResult) -> None:
        """Keeps the result, and shows it."""
        super().receive(result)
        self._console.print(show_answer(result.observation, result.reward))

    def _say(self, given: Sequence[str]) -> Iterator[str]:
        for action in given:
            self._console.print(show_text(action, _MARK, "cyan"))
            self.actions.append(action)
            yield action
        self._console.print(show_text(explain_typing(self._task), style="dim"))
        while (typed := self._read()) is not None:
            if typed.strip() in _HELP:  # costs no turn
                self._console.print(show_text(explain_typing(self._task), style="dim"))
                continue
            action = write_out(typed, self._task)
            self.actions.append(action)
            yield action

    def _read(self) -> str | None:
        """Returns what is typed up to the end of an action; None at the end of the input."""
        lines: list[str] = []
        while not lines or is_unfinished(lines):
            line = self._read_line(_MARK if not lines else "… ")
            if line is None:
                return None
            lines.append(line)
        return "\n".join(line.removesuffix("\\") for line in lines)

    def _read_line(self, mark: str) -> str | None:
        if sys.stdin.isatty() and self._console.is_terminal:
            limit = f" of {self._max_turns}" if self._max_turns else ""
            try:
                return input(f"turn {len(self.actions) + 1}{limit} {mark}")
            except EOFError:
                self._console.print()
                return None
        line = sys.stdin.readline()
        if not line:
            return None
        self._console.print(show_text(line.rstrip("\n"), mark, "cyan"))
        return line.removesuffix("\n")


def is_unfinished(lines: list[str]) -> bool:
    r"""Returns whether an action continues in the next line: after a `\`, or in an open block.

    >>> is_unfinished(["Act: bash\\"]), is_unfinished(["```sql"]), is_unfinished(["ls"])
    (True, True, False)
    """
    num_fences = sum(line.lstrip().startswith(_FENCE) for line in lines)
    return lines[-1].endswith("\\") or num_fences % 2 == 1


def explain_typing(task: Task) -> str:
    """Returns how actions are typed, in a line."""
    how = "an action ends at Enter"
    if isinstance(task, DBBenchTask):
        how = f"a statement ends at Enter; `{_ANSWER} TEXT` answers"
    elif isinstance(task, OSTask):
        how = f"a command ends at Enter; `{_ANSWER} TEXT` answers, `finish` ends without an answer"
    return f"({how}; after \\ it continues in the next line; ? is help; Ctrl-D leaves)"


def write_out(typed: str, task: Task) -> str:
    """Returns the action that is meant: statements and commands need not be dressed by hand.

    What has the environment's own form already, or is of another environment, stays as it is.
    """
    word, _, rest = typed.strip().partition(" ")
    if isinstance(task, DBBenchTask) and "Action:" not in typed:
        return answer_action(rest.strip()) if word == _ANSWER else operation_action(typed)
    if isinstance(task, OSTask) and "Act:" not in typed:
        if word == _ANSWER:
            return finish_action(rest.strip())
        return finish_action(None) if typed.strip() == "finish" else command_action(typed)
    return typed
