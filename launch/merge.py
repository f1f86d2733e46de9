"""Merges an adapter into its base: a standalone Hugging Face model, checked from the disk.

```sh
python launch/merge.py outputs/quickstart/20260101-120000
python launch/merge.py path/to/adapter --base Qwen/Qwen2.5-0.5B-Instruct --output merged
python launch/merge.py path/to/adapter --check merged
python launch/merge.py outputs/lifelong/arith5/seed-0/bank/order-0
```

Both checks read the written model anew: its log-probabilities are those of the unmerged pair, and
taking the adapter away again leaves the base. A bank's adapters become a model each, in folders by
their names. The last line is JSON, with all sizes; of a bank it has a report for each adapter.

Exit status: 0 merged and checked; 1 a check failed, nothing is left; 2 wrong input or wrong base.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import making
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.run_folder import shown

_base = partial(Option, rich_help_panel="The base model")
main = CommandLine()


@main.add(help=__doc__)
def merge(
    adapter: Annotated[Path, Argument(help="Folder of an adapter, a checkpoint, a run or a bank.")],
    *,
    output: Annotated[Path | None, Option(show_default="merged, beside the adapter")] = None,
    check: Annotated[Path | None, Option(help="Check this model; merge nothing.")] = None,
    base: Annotated[str | None, _base(help="Where it is now, if it was moved.")] = None,
    same_base: Annotated[bool, _base("--same-base", help="Trust --base's other name.")] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None, _base(show_default="the base's own")
    ] = None,
) -> int:
    """Merges, or only checks, and prints the report."""
    from transformers.utils.logging import disable_progress_bar

    from agentpeft.launch.evaluating import merging
    from agentpeft.launch.evaluating.adapter_bank import is_bank, read_bank

    disable_progress_bar()  # type: ignore[no-untyped-call]
    if is_bank(adapter):
        if check is not None:
            raise SettingsError(f"--check compares one adapter, and {adapter} is a bank: name one")
        folder = output or adapter / "merged"
        if folder.exists():
            raise SettingsError(f"--output {folder} exists")
        with merging.making_parents(folder), making(folder) as new:  # all of them, or none
            reports = {
                name: merging.merge(
                    merging.base_settings(path, base, dtype), path, new / name, same_base
                )
                for name, path in read_bank(adapter).adapters.items()
            }
        for name, report in reports.items():
            report["merged"] = shown(folder / name) if report["agrees"] else None
        print(json.dumps(reports))
        return 0 if all(report["agrees"] for report in reports.values()) else 1
    folder = merging.find_adapter(adapter)
    settings = merging.base_settings(folder, base, dtype)
    if check is not None:
        report = merging.check_merged(settings, folder, check, same_base)
    else:
        report = merging.merge(settings, folder, output or folder.parent / "merged", same_base)
    print(json.dumps(report))
    return 0 if report["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
