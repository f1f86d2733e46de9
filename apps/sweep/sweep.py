"""Trains with each of several settings, and compares the runs.

```sh
agentpeft sweep arithmetic_add training.lr=3e-4,1e-3 seed=0,1
```

A setting with several values, parted by commas, is swept: every combination is a run. The others
hold for all of them. Ray Tune places the runs side by side as CPUs and GPUs allow. Each is a folder
that `report`, `diff`, `why` and the other commands take. A table of the runs comes at the end; off
a terminal the last line is JSON.

Exit status: 0 done; 1 a run failed; 2 wrong settings.
"""

import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import is_installed
from agentpeft.envs.system.whole_files import temporary_folder
from agentpeft.launch.reporting.run_data import read_run
from agentpeft.launch.run.command_line import CommandLine, SettingsWords, split_settings
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import fill_run_dir, output_base, read_start, shown
from agentpeft.policies.checkpointing.checkpoints import make_dated_folder
from agentpeft.policies.settings.config import Settings, to_toml_value
from agentpeft.policies.settings.environment_kwargs import parse_value

_MAX_CHARS = 100
main = CommandLine()


@dataclass(frozen=True)
class SweptRun:
    """What became of one run; a success rate of None was not measured."""

    run: str
    settings: dict[str, str]
    before: float | None
    after: float | None
    seconds: float | None
    error: str | None


@main.add(help=__doc__)
def sweep(words: SettingsWords = None, *, as_json: AsJson = False) -> int:
    """Trains all combinations, and prints the table. Raises: SettingsError, DataError."""
    from agentpeft.launch.checking.preparation import prepare, prepare_tiny

    if not all(map(is_installed, ("pandas", "pyarrow", "fsspec", "requests"))):
        raise SettingsError("sweep needs Ray Tune: pip install '.[train,tune]' in the checkout")
    configs, overrides = split_settings(words)
    swept, fixed = split_swept(overrides)
    changes = [dict(zip(swept, texts, strict=True)) for texts in product(*swept.values())]
    settings = []
    for change in changes:
        swept_words = [f"{name}={text}" for name, text in change.items()]
        start = read_start(configs, [*fixed, *swept_words])
        settings.append(prepare(start.settings, None, is_new=True))
    base = output_base(Path(settings[0].output.dir))
    for run_settings in settings:
        prepare_tiny(run_settings)
    folder = make_dated_folder(base / "sweeps" / settings[0].experiment)
    runs = _train(settings, changes, folder)
    print(*make_table(runs), sep="\n")
    done = [shlex.quote(run.run) for run in runs if not run.error]
    next_step = f"next: agentpeft report {' '.join(done)}" if done else "no run has ended well"
    result = {"output": shown(folder), "runs": [asdict(run) for run in runs]}
    finish(result, next_step, as_json=as_json)
    return int(any(run.error for run in runs))


def split_swept(overrides: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the texts of each setting that has several values, and the other overrides.

    >>> split_swept(["training.lr=1e-3,1e-2", "lora.target_modules=['q', 'v']", "seed=4"])
    ({'training.lr': ['1e-3', '1e-2']}, ["lora.target_modules=['q', 'v']", 'seed=4'])

    Raises: SettingsError if there is none to sweep.
    """
    swept: dict[str, list[str]] = {}
    fixed = []
    for override in overrides:
        name, _, text = override.partition("=")
        if name in swept:
            raise SettingsError(f"{name} is given twice")
        if "," not in text or parse_value(text) != text:
            fixed.append(override)
        elif isinstance(values := parse_value(f"[{text}]"), list) and set(text) & set("[{'\""):
            swept[name] = [to_toml_value(value) for value in values]
        else:
            swept[name] = [value.strip() for value in text.split(",")]
    if not swept:
        raise SettingsError("nothing to sweep: give a setting several values, as seed=0,1")
    return swept, fixed


def _train(
    settings: Sequence[Settings], changes: Sequence[dict[str, str]], folder: Path
) -> list[SweptRun]:
    """Runs a trial with each settings; `changes` are what they differ in. Returns them in order."""
    os.environ |= {  # read when Tune is imported, and by its workers
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",  # settings name files from here
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
    from agentpeft.apps.sweep.trials import run_trials
    from agentpeft.launch.run.ray_session import ray_session

    names = [_name_run(number, change) for number, change in enumerate(changes)]
    for name, run_settings in zip(names, settings, strict=True):
        (folder / name).mkdir()
        fill_run_dir(folder / name, run_settings)
    logging.getLogger("ray.tune").setLevel(logging.WARNING)
    with ray_session(None, folder), temporary_folder(folder, ".tune-") as storage:
        print(f"{len(names)} runs in {shown(folder)}", file=sys.stderr, flush=True)
        results = run_trials(settings, names, folder, storage)
    runs = []
    for name, change, result in zip(names, changes, results, strict=True):
        first, last = read_run(folder / name, may_be_new=True).evaluations()
        before, after = (row.get("eval/success_rate") for row in (first, last))
        after = None if result[1] else after
        runs.append(SweptRun(shown(folder / name), change, before, after, *result))
    return runs


def _name_run(number: int, changes: Mapping[str, str]) -> str:
    """Returns the name of a run's folder, by which reports tell the runs apart."""
    text = ",".join(f"{name}={value}" for name, value in changes.items())
    name = "".join(char if char.isalnum() or char in "-_.,=" else "_" for char in text)
    return f"{number:02d}-{name[:_MAX_CHARS]}"


def make_table(runs: Sequence[SweptRun]) -> list[str]:
    """Returns a line for each run: the settings that differ, success before and after, seconds."""
    rows = [[*runs[0].settings, "before", "after", "seconds", "run"]]
    for run in runs:
        rates = ["-" if rate is None else f"{rate:.1%}" for rate in (run.before, run.after)]
        seconds = "-" if run.seconds is None else f"{run.seconds:.0f}"
        end = f"failed: {run.error}" if run.error else Path(run.run).name
        rows.append([*run.settings.values(), *rates, seconds, end])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
