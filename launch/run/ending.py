"""How a command ends: on a terminal with lines for a person, else with one line of JSON."""

import json
import re
import sys
from typing import Annotated, TextIO

from typer import Option

AsJson = Annotated[bool, Option("--json", help="End with JSON, also on a terminal.")]
"""The option of every command that ends by `finish`."""
_CHECKPOINT = re.compile(r"checkpoint-0*(\d+)(-merged)?")
_UNITS = (("hours", 3600), ("minutes", 60))


def finish(result: object, *lines: str, as_json: bool, output: TextIO | None = None) -> None:
    """Prints what was done and what can be done next; off a terminal `result`, as JSON.

    `output` None is standard output.
    """
    output = output or sys.stdout
    shown = lines if output.isatty() and not as_json else (json.dumps(result),)
    print(*shown, sep="\n", file=output, flush=True)


def say_policy(name: str) -> str:
    """Returns what readers call a policy.

    >>> say_policy("checkpoint-000020"), say_policy("base")
    ('adapter (iteration 20)', 'base')
    """
    match = _CHECKPOINT.fullmatch(name)
    if match is None:
        return name
    return f"{'merged ' if match[2] else ''}adapter (iteration {match[1]})"


def say_time(seconds: float) -> str:
    """Returns a duration as it is said aloud: `say_time(500.0) -> "8 minutes"`."""
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
