"""What all commands share: their options, one-line errors and exit statuses."""

import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENAMETOOLONG
from functools import partial, wraps
from inspect import Parameter, signature
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Argument, Option, Typer, TyperException
from typer.main import get_command

from agentpeft.envs import DataError, EnvFault, SettingsError, UnknownTaskError
from agentpeft.envs.core.errors import add_user_folder, in_sentence
from agentpeft.launch.run.standard_streams import open_closed_streams
from agentpeft.policies.errors import (
    CheckpointError,
    DeliveryError,
    EngineError,
    PlacementError,
    TrainingError,
    is_out_of_memory,
)
from agentpeft.policies.settings.environment_kwargs import parse_value
from agentpeft.policies.workers.time_limits import leave

FAILURES = (CheckpointError, DeliveryError, EngineError, EnvFault, PlacementError, TrainingError)
WRONG = (SettingsError, DataError, UnknownTaskError)
_INTERRUPTED = 130
_EXTRA = {"torch", "transformers", "peft", "ray", "jinja2", "matplotlib", "huggingface_hub"}
"""Packages of the extra `train`, without which `prepare-data` still works."""
_DEBUG = Parameter(
    "debug",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, Option("--debug", help="Show tracebacks.")],
)
Command = TypeVar("Command", bound=Callable[..., int])
DryRun = Annotated[
    bool, Option("--dry-run", help="Show settings and memory, and what would stop the run.")
]
FastDevRun = Annotated[
    bool, Option("--fast-dev-run", help="Two tiny iterations of all that a run does.")
]
SettingsWords = Annotated[
    list[str] | None,
    Argument(
        metavar="CONFIG|KEY=VALUE",
        help="Presets (`agentpeft configs`), TOML files or an environment's id, a later one over "
        "the earlier; then dotted settings.",
    ),
]
"""The positional words of a command that takes settings; None without any."""


class _PresentStderr(logging.Handler):
    """Writes to what is standard error when it writes: above the bar that `train` may have."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            self.handleError(record)


class CommandLine(Typer):
    """One command or several. Called with words, it returns the exit status.

    The status is what the command's function returns, 2 for wrong input, 1 for any other error
    and 130 for Ctrl-C. Errors are one line on standard error; `--debug` adds the traceback.
    """

    def __init__(self, program: str | None = None, **settings: Any) -> None:
        """`program` is what messages call it (None: the script's file); `settings` are Typer's."""
        super().__init__(
            add_completion=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            pretty_exceptions_enable=False,
            rich_markup_mode="markdown",
            **settings,
        )
        self._program = program

    def add(self, **settings: Any) -> Callable[[Command], Command]:
        """Adds a function as a command, with `--debug` too; `settings` are Typer's."""

        def register(function: Command) -> Command:
            @wraps(function)
            def run(debug: bool, **options: Any) -> int:
                return _run(partial(function, **options), debug)

            declared = signature(function)
            parameters = [*declared.parameters.values(), _DEBUG]
            run.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
            self.command(**settings)(run)
            return function

        return register

    def __call__(self, words: Sequence[str] | None = None) -> int:
        """Runs what `words` say (None: those of the process) and returns the exit status.

        Where a call into Ray still hangs, the process ends here with that status.
        """
        open_closed_streams()
        with suppress(FileNotFoundError):  # it has been deleted
            add_user_folder(Path.cwd())
        try:
            status = get_command(self).main(words, self._program, standalone_mode=False)
        except TyperException as error:
            text = " ".join(error.format_message().split()).replace("Value error, ", "")
            context = getattr(error, "ctx", None)
            program = f"{context.command_path} " if context else ""
            return _fail(f"{in_sentence(text).rstrip('.')}; see {program}--help")
        except OSError as error:  # the help itself could not be written
            if isinstance(error, BrokenPipeError) and _is_unread():
                return 1
            return _fail(say(error), 1)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in _EXTRA:
                raise
            return _fail(f"{error}: pip install 'agentpeft[train]'")
        return leave(status or 0)


def _run(command: Callable[[], int], is_debug: bool) -> int:
    """Returns what `command()` does; of an error the status, after one line."""
    logging.basicConfig(format="%(message)s", handlers=[_PresentStderr()])
    logging.getLogger("agentpeft").setLevel(logging.INFO)
    try:
        status = command()
        sys.stdout.flush()
    except (*WRONG, *FAILURES, OSError) as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            return 1
        if is_debug:
            traceback.print_exc()
        is_wrong = isinstance(error, WRONG) or getattr(error, "errno", 0) == ENAMETOOLONG
        return _fail(say(error), 2 if is_wrong else 1)
    except (MemoryError, RuntimeError, ImportError) as error:
        if is_debug or not is_out_of_memory(error):
            raise
        return _fail(f"no memory is left on this machine: {say(error) or 'MemoryError'}", 1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    return status


def _is_unread() -> bool:
    """Returns whether nobody reads standard output any more (`| head`); then it goes nowhere."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not poll.poll(0):  # it is another pipe that has broken
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
    return True


def _fail(message: str, status: int = 2) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


def split_settings(words: list[str] | None) -> tuple[list[str], list[str]]:
    """Returns the configs, "quickstart" if none is named, and the overrides after them."""
    words = words or []
    configs = list(takewhile(lambda word: "=" not in word, words))
    return configs or ["quickstart"], words[len(configs) :]


def read_env_kwargs(env_id: str, words: Sequence[str]) -> dict[str, Any]:
    """Returns an environment's arguments from the words after its id. Raises: SettingsError."""
    kwargs = {}
    for word in words:
        name, is_argument, text = word.partition("=")
        if not is_argument:
            raise SettingsError(f"after {env_id} expected KEY=VALUE, got {word!r}")
        kwargs[name] = parse_value(text)
    return kwargs


def say(error: BaseException) -> str:
    """Returns an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        place = str(error.filename or "output")
        return f"{place[:200] if error.errno == ENAMETOOLONG else place}: {error.strerror}"
    return " ".join(str(error).split())
