"""OS-interaction's action syntax: a bash block to run, an answer, or the end."""

import re
from dataclasses import dataclass

from agentpeft.envs.core.actions import InvalidAction, find_block, write_block

_MARKER = re.compile(r"Act:[ \t]*(?:(bash|finish)\b|answer[ \t]*\()")


@dataclass(frozen=True)
class Command:
    """Run this in the shell."""

    script: str


@dataclass(frozen=True)
class Finish:
    """The end; `answer` is None without one."""

    answer: str | None = None


def parse_action(text: str) -> Command | Finish | InvalidAction:
    """Returns what the first `Act:` marker of a message asks for; text before it is thought.

    An answer goes to the last closing bracket of the message.

    >>> parse_action("There are three. Act: answer(3)")
    Finish(answer='3')
    """
    marker = _MARKER.search(text)
    if marker is None:
        return InvalidAction('no "Act: bash", "Act: answer(...)" or "Act: finish" found')
    body = text[marker.end() :]
    if marker[1] == "finish":
        return Finish()
    if marker[1] is None:
        answer, bracket, _ = body.rpartition(")")
        answer = answer.strip().replace("\r\n", "\n").replace("\r", "\n")
        return Finish(answer) if bracket else InvalidAction('"Act: answer(" has no ")"')
    script = find_block("bash", body)
    if script is None:
        return InvalidAction('"Act: bash" needs a ```bash block after it')
    return Command(script)


def command_action(script: str) -> str:
    """Returns the action that runs a script."""
    return f"Act: bash\n{write_block('bash', script)}"


def finish_action(answer: str | None) -> str:
    """Returns the action that ends an episode, with an answer or without."""
    return "Act: finish" if answer is None else f"Act: answer({answer})"
