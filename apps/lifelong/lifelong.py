"""Learns a sequence of stages by several methods, and measures what each of them forgets.

```sh
agentpeft lifelong arith5 --quick
agentpeft lifelong arith5 --methods sequential,replay_5,bank --orders 3 --seeds 2
agentpeft lifelong db9 base=db_bench_coder_05b --methods sequential,replay_5 --no-kl
agentpeft lifelong my_sequence.toml training.num_iterations=100 --output outputs/mine
```

A sequence is a name in apps/lifelong/sequences, or a TOML file with `[[stages]]`; `base=CONFIG`
learns its stages with the settings of that config, as of a real model. After each stage, the
held-out tasks of all stages are played. The same command continues an interrupted study. It
writes results.json, matrix.csv, lifelong.html and matrices.png. Off a terminal, or with --json, the
last line on standard output is JSON.

Exit status: 0 done; 1 a failure; 2 wrong input; 143, 130 or 129 stopped by SIGTERM, Ctrl-C or a
hang-up of the terminal.
"""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from agentpeft.envs import SettingsError
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import output_base, shown
from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.launch.run.stop_signals import Stopped, StopSignals

main = CommandLine()


@main.add(help=__doc__)
def lifelong(  # noqa: PLR0913 (options, by keyword only)
    sequence: Annotated[str, Argument(help="A built-in sequence's name, or a TOML file.")],
    settings: Annotated[
        list[str] | None, Argument(metavar="KEY=VALUE", help="Dotted settings.")
    ] = None,
    *,
    methods: Annotated[
        str | None, Option(metavar="NAME,NAME", help="Some methods: sequential,replay_5,bank.")
    ] = None,
    stages: Annotated[
        str | None, Option(metavar="NAME,NAME", help="Some stages; the others are left out.")
    ] = None,
    orders: Annotated[int, Option(help="Number of orders: the file's, then shuffled ones.")] = 1,
    seeds: Annotated[int, Option(help="Number of seeds, from the setting seed on.")] = 1,
    kl: Annotated[
        bool, Option(help="Measure how far each stage moves the policy, by more episodes.")
    ] = True,
    quick: Annotated[bool, Option("--quick", help="Few methods and short runs.")] = False,
    output: Annotated[
        Path | None, Option(metavar="DIR", help="Where to write, or to continue.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Runs all courses and prints the summary."""
    from agentpeft.apps.lifelong.course import CourseResult
    from agentpeft.apps.lifelong.lifelong_study import (
        Study,
        run_study,
        summarize,
        write_results,
    )
    from agentpeft.apps.lifelong.methods import METHODS, QUICK
    from agentpeft.apps.lifelong.page import write_page
    from agentpeft.apps.lifelong.task_sequence import read_sequence
    from agentpeft.launch.checking.machine_checks import Machine, find_faults, try_environments

    own = read_sequence(sequence, settings or [], is_quick=quick)
    if stages is not None:
        own = own.with_stages(_names(stages))
    chosen = QUICK if quick else tuple(METHODS)
    study = Study(own, chosen if methods is None else _names(methods), orders, seeds, kl)
    experiment = own.settings.experiment + ("-quick" if quick else "")
    base = output_base(Path(own.settings.output.dir))
    folder = (output or base / "lifelong" / experiment).absolute()
    find_faults(Machine(own.settings, output=folder))
    try_environments(own.settings)
    signals = StopSignals()
    try:
        with reserved_stdout() as stdout, signals.handle():
            results: list[CourseResult] = []
            for course in run_study(study, folder, signals):
                results.append(course)
                summary = summarize(results)
                write_results(results, summary, folder / "results.json")
            page = write_page(results, summary, folder)
            ending = {"output": shown(folder), "page": shown(page), **summary}
            lines = (
                f"{len(results)} courses are done: {ending['output']}",
                f"page: {ending['page']}",
            )
            finish(ending, *lines, as_json=as_json, output=stdout)
    except Stopped as stop:
        print(f"stopped by {stop}; the same command continues", file=sys.stderr)
        return stop.exit_status
    return 0


def _names(words: str) -> list[str]:
    """Returns the names between commas. Raises: SettingsError where there is none."""
    names = [name.strip() for name in words.split(",") if name.strip()]
    if not names:
        raise SettingsError(f"names are written NAME,NAME, got {words!r}")
    return names


if __name__ == "__main__":
    sys.exit(main())
