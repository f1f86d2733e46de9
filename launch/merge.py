"""Merges an adapter into its base: a standalone Hugging Face model, checked from the disk.

```sh
agentpeft merge outputs/quickstart/20260101-120000
agentpeft merge path/to/adapter --base Qwen/Qwen2.5-0.5B-Instruct --output merged
agentpeft merge path/to/adapter --check merged
agentpeft merge outputs/lifelong/arith5/seed-0/bank/order-0
```

Two checks read the written model from the disk: its log-probabilities are those of the unmerged
pair, and taking the adapter away again leaves the base. A bank's adapters become a model each, in
folders by their names. Off a terminal, or with --json, the last line is JSON, with all sizes; of a
bank it has a report for each adapter.

Exit status: 0 merged and checked; 1 a check failed, nothing is left; 2 wrong input or wrong base.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from agentpeft.envs import SettingsError
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import find_adapter, shown

_base = partial(Option, rich_help_panel="The base model")
main = CommandLine()


@main.add(help=__doc__)
def merge(  # noqa: PLR0913 (options, by keyword only)
    adapter: Annotated[Path, Argument(help="Folder of an adapter, a checkpoint, a run or a bank.")],
    *,
    output: Annotated[Path | None, Option(show_default="merged, beside the adapter")] = None,
    check: Annotated[Path | None, Option(help="Check this model; merge nothing.")] = None,
    base: Annotated[str | None, _base(help="Where it is now, if it was moved.")] = None,
    same_base: Annotated[bool, _base("--same-base", help="Trust --base's other name.")] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None, _base(show_default="the base's own")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Merges, or only checks, and prints the report."""
    from agentpeft.launch.evaluating.adapter_bank import is_bank, read_bank

    has_many = is_bank(adapter)
    if has_many and check is not None:
        raise SettingsError(f"--check compares one adapter, and {adapter} is a bank: name one")
    adapters = dict(read_bank(adapter).adapters) if has_many else {"": find_adapter(adapter)}
    folder = output or (adapter if has_many else adapters[""].parent) / "merged"
    if check is not None and not check.is_dir():
        raise SettingsError(f"--check {check}: there is no such folder")
    if check is None and folder.exists():  # said before torch is imported
        raise SettingsError(f"--output {folder} exists: remove it, or give another folder")
    from transformers.utils.logging import disable_progress_bar

    from agentpeft.launch.evaluating import merging

    disable_progress_bar()  # type: ignore[no-untyped-call]
    bases = {name: merging.base_settings(path, base, dtype) for name, path in adapters.items()}
    if check is not None:
        report = merging.check_merged(bases[""], adapters[""], check, same_base)
        finish(report, *_describe(report), as_json=as_json)
        return 0 if report["agrees"] else 1
    with merging.making_with_parents(folder) as new:  # all of them, or none
        reports = {
            name: merging.merge(bases[name], path, new / name, same_base)
            for name, path in adapters.items()
        }
    for name, report in reports.items():
        report["merged"] = shown(folder / name)
    lines = chain.from_iterable(map(_describe, reports.values()))
    finish(reports if has_many else reports[""], *lines, as_json=as_json)
    return 0


def _describe(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields what was merged or checked, and how it is used."""
    path, is_same = report["merged"], report["agrees"]
    verdict = "same log-probabilities as" if is_same else "NOT the same policy as"
    size = f"{report['size_mib']['merged']:.1f} MiB"
    yield f"merged model: {path} ({size}), {verdict} {report['adapter']} on its base"
    if is_same:
        served = shlex.quote(path)
        yield f"use: AutoModelForCausalLM.from_pretrained({path!r}) or vllm serve {served}"


if __name__ == "__main__":
    sys.exit(main())
