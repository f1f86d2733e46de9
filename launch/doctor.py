"""Looks at this machine and says, line by line, what works and what to do about the rest.

    python launch/doctor.py
    python launch/doctor.py db_bench environment.kwargs.database=docker

First what the config needs, then a tiny model learns for one step and every piece of it is checked.
The last line is JSON. Exit status: 0 the config can run here; 1 it cannot; 2 wrong settings.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentpeft.launch.checking.machine_checks import ALL, Finding, Machine
from agentpeft.launch.command_line import CommandParser, add_settings, run_command, split_settings
from agentpeft.launch.run.run_folder import output_base, read_start


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    return run_command(_run, make_parser().parse_intermixed_args(argv))


def _run(args: Namespace) -> int:
    settings = read_start(*split_settings(args.settings)).settings
    machine = Machine(settings, output=output_base(Path(settings.output.dir).expanduser()))
    found = []
    for finding in _look(machine, not args.no_ladder):
        mark = "FAULT" if finding.is_fault else "note" if finding.remedy else "ok"
        print(f"{mark:<5} {finding.name}: {finding.text}", flush=True)
        if finding.remedy:
            print(f"      -> {finding.remedy}", flush=True)
        found.append(finding)
    faults = [finding.name for finding in found if finding.is_fault]
    notes = [finding.name for finding in found if finding.remedy and not finding.is_fault]
    print(json.dumps({"can_run": not faults, "faults": faults, "notes": notes}))
    return 1 if faults else 0


def _look(machine: Machine, has_ladder: bool) -> Iterator[Finding]:
    """Yields what all checks find; what cannot be imported is not climbed."""
    is_whole = True
    for check in ALL:
        for finding in check(machine):
            is_whole = is_whole and not (finding.is_fault and finding.name == "packages")
            yield finding
    if has_ladder and is_whole:
        from agentpeft.launch.checking.ladder import climb

        yield from climb()


def make_parser() -> CommandParser:
    """Returns the command's words."""
    parser = CommandParser(__doc__)
    add_settings(parser)
    parser.add_argument("--no-ladder", action="store_true", help="look at the machine alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
