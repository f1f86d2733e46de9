"""What there is to a command: the script, its options, the target, the extra."""

import re
import tomllib
from importlib import import_module
from typing import Any

import click
from docs_blocks import ROOT, split_commands
from ray.scripts.scripts import cli as ray_cli
from typer.main import get_command

from agentpeft.launch.cli import COMMANDS, get_module

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
TARGETS = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
FOREIGN = {"cd", "docker", "export", "git", "kubectl", "nvidia-smi", "vllm", "."}
"""Of these only the files that they name are looked at here."""
_IN_TREE = re.compile(r"^(?:benchmarks|docs|examples|launch|apps|\.ci)/[\w./-]+$")


def problem_of(words: list[str]) -> str:
    """Returns what no newcomer could run of a command; of a sound one an empty text."""
    missing = [word for word in words if _IN_TREE.match(word) and not (ROOT / word).exists()]
    if missing:
        return f"no file {missing}"
    name, *rest = words
    if name in {"python", "python3"}:
        return _python(rest)
    if name == "agentpeft":
        return _own(rest[0], rest[1:]) if rest[0] != "completion" else ""
    known = {"make": _make, "pip": _pip, "ray": _ray}
    if name in known:
        return known[name](rest)
    return "" if name in FOREIGN or (ROOT / name).is_file() else f"unknown command {name}"


def _python(words: list[str]) -> str:
    if words[0] != "-m":
        stem = words[0].removeprefix("launch/").removesuffix(".py")
        return _own(stem.replace("_", "-"), words[1:]) if words[0].startswith("launch/") else ""
    module = words[1]
    if module.startswith("agentpeft.launch."):
        return _own(module.rpartition(".")[2].replace("_", "-"), words[2:])
    return "" if module in {"venv", "vllm.entrypoints.openai.api_server"} else f"unknown {module}"


def _own(name: str, words: list[str]) -> str:
    if name not in COMMANDS:
        return f"agentpeft has no command {name}"
    module = import_module(get_module(name))
    return _unknown(words, _options(get_command(module.main)))


def _options(command: Any) -> set[str]:
    """Returns the options of a command of Ray's or of ours, and of those that it has."""
    own = {opt for each in command.params for opt in (*each.opts, *each.secondary_opts)}
    return own.union(*(_options(each) for each in getattr(command, "commands", {}).values()))


def _unknown(words: list[str], options: set[str]) -> str:
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    return "".join(f"no option {option} " for option in given if option not in options)


def _make(words: list[str]) -> str:
    targets = [word for word in words if "=" not in word]
    return "".join(f"no target {word} " for word in targets if word not in TARGETS)


def _pip(words: list[str]) -> str:
    named = re.findall(r"(?:agentpeft|\.)\[([\w,]+)\]", " ".join(words))
    extras = {extra for names in named for extra in names.split(",")}
    return "".join(f"no extra {extra} " for extra in sorted(extras - set(EXTRAS)))


def _ray(words: list[str]) -> str:
    """A command of Ray's, and the one of ours that it submits."""
    command: click.Command = ray_cli
    while isinstance(command, click.Group):
        if not words or words[0] not in command.commands:
            return f"ray has no command {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    own, _, theirs = " ".join(words).partition(" -- ")
    problem = _unknown(own.split(), _options(command))
    return problem + "".join(problem_of(each) for each in split_commands(theirs.split()))
