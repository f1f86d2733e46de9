"""What all commands share: one-line errors, exit statuses, and their options' words."""

import logging
import sys
import traceback
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from itertools import takewhile
from typing import NoReturn

from agentpeft.envs import DataError, EnvFault, SettingsError, UnknownTaskError
from agentpeft.policies.errors import (
    CheckpointError,
    DeliveryError,
    EngineError,
    PlacementError,
    TrainingError,
)
from agentpeft.policies.workers.time_limits import leave

FAILURES = (CheckpointError, DeliveryError, EngineError, EnvFault, PlacementError, TrainingError)
WRONG = (SettingsError, DataError, UnknownTaskError)
_INTERRUPTED = 130


class CommandParser(ArgumentParser):
    """Says what is wrong in one line."""

    def __init__(self, description: str | None) -> None:
        """`description` is the module's docstring, shown as it is."""
        super().__init__(description=description, formatter_class=RawDescriptionHelpFormatter)
        self.add_argument("--debug", action="store_true", help="show tracebacks")

    def error(self, message: str) -> NoReturn:
        """Exits with status 2."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def add_settings(parser: ArgumentParser) -> None:
    """Adds the words of a config and its overrides."""
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="[CONFIG ...] [key=value ...]",
        help="names in launch/configs (quickstart) or TOML files, a later one over the earlier; "
        "then dotted settings",
    )


def split_settings(words: list[str]) -> tuple[list[str], list[str]]:
    """Returns the configs, "quickstart" if none is named, and the overrides after them."""
    configs = list(takewhile(lambda word: "=" not in word, words))
    return configs or ["quickstart"], words[len(configs) :]


def run_command(run: Callable[[Namespace], int], args: Namespace) -> int:
    """Returns what `run(args)` does; of an error the status, 2 for wrong input, after one line.

    Where a call into Ray still hangs the process ends here, with that status.
    """
    return leave(_run_command(run, args))


def _run_command(run: Callable[[Namespace], int], args: Namespace) -> int:
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("agentpeft").setLevel(logging.INFO)
    try:
        return run(args)
    except (*WRONG, *FAILURES, OSError) as error:
        if args.debug:
            traceback.print_exc()
        print(f"error: {say(error)}", file=sys.stderr)
        return 2 if isinstance(error, WRONG) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def say(error: BaseException) -> str:
    """Returns an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'output'}: {error.strerror}"
    return " ".join(str(error).split())
