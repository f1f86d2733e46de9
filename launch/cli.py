"""Trains LLM agents by reinforcement learning, and does what comes before and after.

```sh
agentpeft train quickstart
agentpeft init-env my_env.py
agentpeft train --help
agentpeft completion bash >> ~/.bash_completion
```
"""

import sys
from importlib import import_module
from typing import Annotated, Any, Literal

from typer import Context, Exit, Option
from typer.completion import (  # type: ignore[attr-defined]
    completion_init,
    get_completion_script,
)
from typer.core import TyperGroup
from typer.main import get_command

import agentpeft
from agentpeft.launch.run.command_line import CommandLine

COMMANDS = {
    "train": ("launch.train", "Trains a policy: LoRA weights by reinforcement learning."),
    "evaluate": (
        "launch.evaluate",
        "Plays evaluation tasks: models, adapters, endpoints, baselines.",
    ),
    "merge": ("launch.merge", "Makes one model of an adapter and its base, and checks it."),
    "sweep": ("apps.sweep.sweep", "Trains with each of several settings, and compares the runs."),
    "lifelong": (
        "apps.lifelong.lifelong",
        "Learns a sequence of stages by several methods, and what each forgets.",
    ),
    "prove": ("apps.prove.command", "Says what the reward taught, and whether it was the reward."),
    "why": ("apps.lab.why", "Explains how a run went, and which setting to turn."),
    "watch": ("apps.lab.watch", "Shows a run in the terminal, live or replayed."),
    "diff": ("apps.lab.diff", "Compares two runs: settings, curves, and where they diverge."),
    "replay": (
        "apps.lab.playing.replay",
        "Plays a recorded episode again, or another way from a turn on.",
    ),
    "play": (
        "apps.lab.playing.play",
        "Plays an environment by hand, beside the oracle and a policy.",
    ),
    "report": ("launch.report", "Writes a run, or several, as one HTML page."),
    "export": ("apps.lab.export", "Writes a run's episodes as a data set in TRL's formats."),
    "doctor": ("launch.doctor", "Says what works on this machine, and what to do about the rest."),
    "estimate": ("apps.lab.estimate", "Says how long a run will take, by timing small iterations."),
    "engines": (
        "apps.shared_engines.engines",
        "Serves engines that several runs share: one base, all adapters.",
    ),
    "serve": (
        "apps.serve.serve",
        "Serves environments to others over HTTP and WebSocket (OpenEnv).",
    ),
    "mcp": (
        "apps.serve.mcp_server",
        "Plays an environment's tasks for agents that call tools over MCP.",
    ),
    "training-tool": (
        "apps.training_tool.tool_server",
        "Serves training as a tool to agents, over MCP on standard input.",
    ),
    "gateway": ("apps.gateway.gateway", "Trains the model that a program of yours asks."),
    "probe": ("apps.probe.probe", "Says whether an endpoint serves an adapter."),
    "envs": ("apps.listings.envs", "Lists the environments."),
    "configs": ("apps.listings.configs", "Lists the presets that `train` takes."),
    "init-env": (
        "apps.init_env.init_env",
        "Writes a small environment of your own, its settings and a test.",
    ),
    "prepare-data": (
        "launch.prepare_data",
        "Generates, downloads, converts and validates task files.",
    ),
}
"""By name: the module in `agentpeft` whose `main` is its `CommandLine`, and its line in the help.

Here alone a room names an app: the module is imported when the command is run.
"""


def get_module(name: str) -> str:
    """Returns the module of a command."""
    return f"agentpeft.{COMMANDS[name][0]}"


class _Commands(TyperGroup):
    """Imports the module of a command when it is run or completed, not to list it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns a command's name, the command, and the words that are left for it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            module = import_module(get_module(name))
            command = get_command(module.main)
        return name, command, rest


main = CommandLine("agentpeft", cls=_Commands, help=__doc__, invoke_without_command=True)
completion_init()


def _list_only() -> None:
    """Stands for a command until `_Commands` has imported it."""


for _name, (_, _about) in COMMANDS.items():
    main.command(_name, help=_about)(_list_only)


@main.callback()
def _begin(
    context: Context, version: Annotated[bool, Option("--version", help="Show it.")] = False
) -> None:
    if version:
        print(f"agentpeft {agentpeft.__version__}")
        raise Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")


@main.add()
def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Prints a shell's completion script."""
    variable = "_AGENTPEFT_COMPLETE"
    print(get_completion_script(prog_name="agentpeft", complete_var=variable, shell=shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
