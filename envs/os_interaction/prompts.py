"""OS-interaction's prompts: `full` explains the game, `tools` too, `compact` is shortest."""

from typing import Literal

from agentpeft.envs.generated_env import PromptStyle

_FULL = """\
You work as root in a bash shell on a Debian machine without network. You are given a task: \
something to change on the machine, or a question about it. You have {turns}; the last one must \
end the task{end}.

{actions}
Rules:
- It is one shell all along: the current directory, variables and background jobs stay.
- A command may take {timeout:g} seconds; over them it is killed{timeout_ends}. Nobody types into \
the shell, so start nothing that waits for input.
- Long output is shown without its middle.
- An answer is only what was asked for: the number, the name or the path, without other words.
- {other} {invalid}.

{example}Task: {instruction}"""

_TEXT_ACTIONS = """\
Each turn, write exactly one of these three actions. You may think first.

1. Run commands in the shell. You then see what they print.
Act: bash
```bash
ls /tmp
```

2. Answer a question, which ends the task.
Act: answer(42)

3. End a task that asks for no answer, once all is done.
Act: finish
"""

_TOOL_CALLS = """\
Each turn, call exactly one tool: bash to run commands and see what they print, or submit to end \
the task, with the answer to a question, or without one once all is done. You may think first.
"""

_OTHER_TEXT = "Any other text, without one of the three actions,"
_TEXT_EXAMPLE = """\
Example: to the question "How many files are in /etc/skel, hidden ones too?" you could write
Act: bash
```bash
ls -A /etc/skel | wc -l
```
which prints 3, and then
Act: answer(3)

"""

_COMPACT = """\
{instruction}
{turns}: "Act: bash" with a ```bash block, "Act: answer(...)" or "Act: finish\""""


def render_prompt(
    instruction: str,
    style: PromptStyle,
    max_turns: int,
    timeout_s: float,
    does_end: dict[Literal["invalid", "timeout"], bool],
) -> str:
    """Returns the first observation of an episode; `does_end` says what ends it."""
    turns = "1 turn" if max_turns == 1 else f"{max_turns} turns"
    if style == "compact":
        return _COMPACT.format(instruction=instruction, turns=turns)
    is_text = style == "full"
    return _FULL.format(
        turns=turns,
        end=" with action 2 or 3" if is_text else "",
        actions=_TEXT_ACTIONS if is_text else _TOOL_CALLS,
        other=_OTHER_TEXT if is_text else "A turn without a call of one of the tools",
        example=_TEXT_EXAMPLE if is_text else "",
        timeout=timeout_s,
        timeout_ends=", and the task has failed" if does_end["timeout"] else "",
        invalid="ends the task in failure" if does_end["invalid"] else "costs a turn",
        instruction=instruction,
    )
