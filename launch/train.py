"""Trains a policy: LoRA weights by reinforcement learning in a Gymnasium text environment.

    python launch/train.py quickstart
    python launch/train.py arithmetic_add training.lr=1e-3 env_runners.num_env_runners=2
    python launch/train.py --resume outputs/quickstart/20260101-120000

Standard output is JSON lines; the last has success rates before and after, the adapter's place.
What others print goes to standard error. When nobody reads the lines any more, the run goes on.
Exit status: 0 done; 1 the run failed; 2 wrong settings; 143, 130 or 129 stopped by SIGTERM, Ctrl-C
or a hang-up of the terminal, and saved.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from agentpeft.envs import SettingsError
from agentpeft.launch.command_line import CommandParser, add_settings, run_command, split_settings
from agentpeft.launch.run.run_folder import (
    Start,
    change_settings,
    lock_run,
    log_to,
    make_run_dir,
    output_base,
    read_resumed,
    read_start,
    shown,
)
from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.launch.run.stop_signals import Stopped, StopSignals
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.settings.config import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    return run_command(_run, make_parser().parse_intermixed_args(argv))


def _run(args: Namespace) -> int:
    start = _read_start(args)
    if args.dry_run:
        _show(start.settings)
        return 0
    from agentpeft.launch.run.ray_session import RayError, say_cause

    try:
        with reserved_stdout() as output:
            summary = _train(start, args.address, output)
            print(json.dumps(summary), file=output, flush=True)
    except Stopped as stop:
        return stop.exit_status
    except RayError as error:
        raise TrainingError(say_cause(error)) from error
    return 0


def _read_start(args: Namespace) -> Start:
    configs, settings = split_settings(args.settings)
    if args.resume is not None:
        if len(settings) < len(args.settings) or args.resume_from is not None:
            raise SettingsError("--resume goes on with the run's own config: give no other")
        return read_resumed(args.resume, settings)
    if args.resume_from is not None:
        settings.append(f"model.adapter={json.dumps(str(args.resume_from.absolute()))}")
    return read_start(configs, settings)


def _show(settings: Settings) -> None:
    """Prints the settings as TOML, with the memory they need in its comments."""
    from agentpeft.launch.run.resources import describe_memory

    print(settings.to_toml())
    for line in describe_memory(settings):
        print(f"# {line}")


def _train(start: Start, address: str | None, output: TextIO) -> dict[str, object]:
    """Returns the summary. Raises: Stopped, after it was said how to go on."""
    # Read when the hub's client is imported: transformers would show a bar at each checkpoint
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from agentpeft.launch.run.run_loop import run_session

    signals, run_dir = StopSignals(), start.run_dir
    try:
        with signals.handle():
            with signals.immediately():
                settings = _prepare(start.settings, address)
                run_dir = run_dir or make_run_dir(settings)
            start = Start(settings, run_dir, start.checkpoint)
            with lock_run(run_dir), log_to(run_dir):
                if start.checkpoint is not None:
                    change_settings(start)
                return run_session(start, run_dir, address, signals, output)
    except Stopped as stop:
        print(f"stopped by {stop}; {_how_to_go_on(run_dir)}", file=sys.stderr)
        raise


def _prepare(settings: Settings, address: str | None) -> Settings:
    """Returns the settings with their task files, once a look finds nothing in the way of a run."""
    from agentpeft.launch.checking.machine_checks import Machine, find_faults, try_environments
    from agentpeft.launch.data.task_files import with_task_files

    if address is not None and settings.env_runners.num_env_runners == 0:
        raise SettingsError(
            f"--address {address}: env_runners.num_env_runners is 0, so nothing runs in a cluster"
        )
    output = output_base(Path(settings.output.dir))
    find_faults(Machine(settings, output=output, address=address))
    settings = with_task_files(settings)
    try_environments(settings)
    return settings


def _how_to_go_on(run_dir: Path | None) -> str:
    from agentpeft.policies.checkpoints import list_checkpoints

    if run_dir is None or not list_checkpoints(run_dir / "checkpoints"):
        return "there was nothing to save yet"
    return f"go on with: python launch/train.py --resume {shown(run_dir)}"


def make_parser() -> CommandParser:
    """Returns the command's words."""
    parser = CommandParser(__doc__)
    add_settings(parser)
    parser.add_argument("--dry-run", action="store_true", help="show settings and memory, no run")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="a run's or checkpoint's folder")
    parser.add_argument(
        "--resume-from", type=Path, metavar="ADAPTER", help="start from an adapter's weights alone"
    )
    parser.add_argument("--address", help="join this Ray cluster (default: RAY_ADDRESS, or none)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
