"""The one command `agentpeft`: every script of `launch/` by its name.

agentpeft train quickstart
agentpeft train --help
agentpeft completion bash >> ~/.bash_completion
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import shtab

COMMANDS = {
    "train": "trains a policy: LoRA weights by reinforcement learning",
    "evaluate": "plays held-out tasks: models, adapters, endpoints, baselines",
    "merge": "makes one model of an adapter and its base, and checks it",
    "report": "writes a run, or several, as one HTML page",
    "export": "writes a run's episodes as a data set in TRL's formats",
    "doctor": "says what works on this machine, and what to do about the rest",
    "prepare-data": "generates, downloads, converts and validates task files",
}
"""By name: the module `launch/<name>.py` has `main(argv)` and `make_parser()`."""
_NOT_HERE = {"torch", "transformers", "peft", "ray", "pydantic", "jinja2", "matplotlib"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command, or says which there are, and returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        sys.argv[0] = f"agentpeft {words[0]}"  # what its help calls it
        try:
            run: Callable[[Sequence[str]], int] = _load(words[0]).main
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in _NOT_HERE:
                raise
            print(f"error: {error}: pip install 'agentpeft[train]'", file=sys.stderr)
            return 2
        return run(words[1:])
    parser = make_parser(has_options=words[:1] == ["completion"])
    args = parser.parse_args(words)
    print(shtab.complete(parser, args.shell) if args.command else parser.format_help(), end="")
    return 0


def make_parser(has_options: bool) -> ArgumentParser:
    """Returns the words of all commands, with `has_options` their own too (that takes seconds)."""
    parser = ArgumentParser(
        prog="agentpeft", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, about in COMMANDS.items():
        own = [_load(name).make_parser()] if has_options else []
        commands.add_parser(name, help=about, parents=own, add_help=not own)
    completion = commands.add_parser("completion", help="prints a shell's completion script")
    completion.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return parser


def _load(name: str) -> Any:
    return import_module(f"agentpeft.launch.{name.replace('-', '_')}")


if __name__ == "__main__":
    sys.exit(main())
