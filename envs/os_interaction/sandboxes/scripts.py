"""How a trusted script is given to a shell: `compose_script`."""

import secrets
import shlex
from collections.abc import Sequence

from agentpeft.envs.os_interaction.sandboxes.protocol import Interpreter

_COMMANDS: dict[Interpreter, str] = {"bash": "bash", "python3": "python3 -I -B"}


def compose_script(script: str, interpreter: Interpreter, args: Sequence[str]) -> str:
    """Returns the command that runs a script of any length in a process of its own."""
    end = f"END{secrets.token_hex(12)}"
    words = " ".join(shlex.quote(arg) for arg in args)
    return f"{_COMMANDS[interpreter]} /dev/fd/9 {words} 9<<'{end}'\n{script}\n{end}"
