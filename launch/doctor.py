"""Looks at this machine and says, line by line, what works and what to do about the rest.

```sh
agentpeft doctor
agentpeft doctor db_bench environment.kwargs.database=docker
```

First what the config needs, then a tiny model learns for one step and every piece of it is checked.
A config with vLLM and a model of yours has its engine started, which compiles ahead of the run.
Off a terminal, or with --json, the last line is JSON.

Exit status: 0 the config can run here; 1 it cannot; 2 wrong settings.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from typer import Option

from agentpeft.launch.checking.machine_checks import ALL, LATE, Finding, Machine
from agentpeft.launch.run.command_line import CommandLine, SettingsWords, split_settings
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import output_base, read_start

main = CommandLine()


@main.add(help=__doc__)
def doctor(
    words: SettingsWords = None,
    *,
    no_ladder: Annotated[bool, Option("--no-ladder", help="Look at the machine alone.")] = False,
    as_json: AsJson = False,
) -> int:
    """Prints what each check finds, and a summary as JSON."""
    settings = read_start(*split_settings(words)).settings
    machine = Machine(settings, output=output_base(Path(settings.output.dir).expanduser()))
    findings = []
    for finding in _look(machine, not no_ladder):
        mark = "FAULT" if finding.is_fault else "note" if finding.remedy else "ok"
        print(f"{mark:<5} {finding.name}: {finding.text}", flush=True)
        if finding.remedy:
            print(f"      -> {finding.remedy}", flush=True)
        findings.append(finding)
    faults = [finding.name for finding in findings if finding.is_fault]
    notes = [finding.name for finding in findings if finding.remedy and not finding.is_fault]
    verdict = f"cannot run here: {', '.join(faults)}" if faults else "can run here"
    summary = {"can_run": not faults, "faults": faults, "notes": notes}
    finish(summary, f"{settings.experiment} {verdict}", as_json=as_json)
    return 1 if faults else 0


def _look(machine: Machine, has_ladder: bool) -> Iterator[Finding]:
    """Yields what all checks find; what cannot be imported is not climbed."""
    faults = set[str]()
    for check in ALL if has_ladder else ALL[:-1]:  # the last one starts the engine
        if check in LATE and faults & {"packages", "gpu", "model", "memory"}:
            continue
        for finding in check(machine):
            if finding.is_fault:
                faults.add(finding.name)
            yield finding
    if has_ladder and "packages" not in faults:
        from agentpeft.launch.checking.ladder import climb

        yield from climb()


if __name__ == "__main__":
    sys.exit(main())
