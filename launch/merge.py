"""Merges an adapter into its base: a standalone Hugging Face model, checked from the disk.

    python launch/merge.py outputs/quickstart/20260101-120000
    python launch/merge.py path/to/adapter --base Qwen/Qwen2.5-0.5B-Instruct --output merged
    python launch/merge.py path/to/adapter --check merged

Both checks read the written model anew: its log-probabilities are those of the unmerged pair, and
taking the adapter away again leaves the base. The last line is JSON, with all sizes.
Exit status: 0 merged and checked; 1 a check failed, nothing is left; 2 wrong input or wrong base.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from agentpeft.launch.command_line import CommandParser, run_command
from agentpeft.launch.evaluating.merging import base_settings, check_merged, find_adapter, merge


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    return run_command(_run, make_parser().parse_args(argv))


def _run(args: Namespace) -> int:
    disable_progress_bar()  # type: ignore[no-untyped-call]
    adapter = find_adapter(args.adapter)
    settings = base_settings(adapter, args.base, args.dtype)
    if args.check is not None:
        report = check_merged(settings, adapter, args.check, args.same_base)
    else:
        report = merge(settings, adapter, args.output or adapter.parent / "merged", args.same_base)
    print(json.dumps(report))
    return 0 if report["agrees"] else 1


def make_parser() -> ArgumentParser:
    """Returns the command's words."""
    parser = CommandParser(__doc__)
    parser.add_argument("adapter", type=Path, help="folder of an adapter, a checkpoint or a run")
    parser.add_argument("--base", help="its base model, if that is no longer where it was")
    parser.add_argument("--same-base", action="store_true", help="trust --base's other name")
    parser.add_argument("--output", type=Path, help="folder to write (default: merged, beside it)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: the base's own")
    parser.add_argument("--check", type=Path, metavar="MERGED", help="check this model; no merge")
    return parser


if __name__ == "__main__":
    sys.exit(main())
