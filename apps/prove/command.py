"""Says what the reward taught: form, what the base finds among samples, or something new.

```sh
agentpeft prove quickstart --quick
agentpeft prove arithmetic_add --seeds 3
agentpeft prove db_bench training.num_iterations=40 --seeds 5,6,7 --output outputs/mine
```

For each seed it trains three times, with the rewards of the settings, with shuffled ones, and with
a reward for form alone. The same held-out tasks are played before and after, and eight times by the
base. It writes prove.html, results.json, tasks.jsonl and the runs. The same command continues an
interrupted proof. Off a terminal, or with --json, the last line on standard output is JSON.

Exit status: 0 proven; 3 not proven; 1 a run failed; 2 wrong input; 143, 130 or 129 stopped by
SIGTERM, Ctrl-C or a hang-up of the terminal.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from agentpeft.envs import SettingsError
from agentpeft.launch.run.command_line import CommandLine, SettingsWords
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import shown
from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.launch.run.stop_signals import Stopped, StopSignals

main = CommandLine()
_NOT_PROVEN = 3
_MAX_DIGITS = 20


@main.add(help=__doc__)
def prove(
    words: SettingsWords = None,
    *,
    seeds: Annotated[
        str | None, Option(metavar="N|N,N", help="How many (3; quick: 1), or which ones.")
    ] = None,
    quick: Annotated[
        bool,
        Option(
            "--quick",
            help="Half the iterations, one evaluation midway, at most 200 tasks, one seed.",
        ),
    ] = False,
    output: Annotated[
        Path | None, Option(metavar="DIR", help="Where to write, or to continue.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Trains, measures, and prints the verdict."""
    # Read when the hub's client is imported: transformers would show a bar at each checkpoint
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    num_seeds, named = read_seeds(seeds)
    from agentpeft.apps.prove.study import plan_study, run_study, summarize
    from agentpeft.launch.run.ray_session import RayError, say_cause
    from agentpeft.policies.errors import TrainingError

    plan = plan_study(words or [], num_seeds, named, is_quick=quick, output=output)
    signals = StopSignals()
    try:
        with reserved_stdout() as stdout, signals.handle():
            proof = run_study(plan, signals)
            page = shown(plan.folder / "prove.html")
            ending = {"output": shown(plan.folder), "page": page, **summarize(proof)}
            lines = proof.verdict.sentence, f"page: {page} (open it in a browser)"
            finish(ending, *lines, as_json=as_json, output=stdout)
    except Stopped as stop:
        print(f"stopped by {stop}; the same command continues", file=sys.stderr)
        return stop.exit_status
    except RayError as error:
        raise TrainingError(say_cause(error)) from error
    return 0 if proof.verdict.is_proven else _NOT_PROVEN


def read_seeds(text: str | None) -> tuple[int | None, list[int]]:
    """Returns how many seeds are asked for, and which ones are named.

    >>> read_seeds("3"), read_seeds("5,6"), read_seeds("5,")
    ((3, []), (None, [5, 6]), (None, [5]))

    Raises: SettingsError.
    """
    words = [word for word in (text or "").split(",") if word]
    numbers = [int(word) for word in words if word.isdecimal() and len(word) < _MAX_DIGITS]
    if text is None:
        return None, []
    if len(numbers) < len(words) or not numbers or text == "0":
        raise SettingsError(f"--seeds is how many (3) or which ones (5,6,7), got {text!r}")
    return (None, numbers) if "," in text else (numbers[0], [])


if __name__ == "__main__":
    sys.exit(main())
