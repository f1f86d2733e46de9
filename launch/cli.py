"""The one command `agentpeft`: every script of `launch/` by its name.

```sh
agentpeft train quickstart
agentpeft train --help
agentpeft completion bash >> ~/.bash_completion
```
"""

import sys
from importlib import import_module
from typing import Any, Literal

from typer import Context
from typer.completion import (  # type: ignore[attr-defined]
    completion_init,
    get_completion_script,
)
from typer.core import TyperGroup
from typer.main import get_command

from agentpeft.launch.run.command_line import CommandLine

COMMANDS = {
    "train": "Trains a policy: LoRA weights by reinforcement learning.",
    "evaluate": "Plays held-out tasks: models, adapters, endpoints, baselines.",
    "merge": "Makes one model of an adapter and its base, and checks it.",
    "lifelong": "Learns a sequence of stages by several methods; what each forgets.",
    "why": "Explains how a run went, and which setting to turn.",
    "watch": "Shows a run in the terminal, as it goes or again.",
    "diff": "Compares two runs: settings, curves, and where they part.",
    "replay": "Plays a recorded episode again, or another way from a turn on.",
    "play": "Plays an environment by hand, beside the oracle and a policy.",
    "report": "Writes a run, or several, as one HTML page.",
    "export": "Writes a run's episodes as a data set in TRL's formats.",
    "doctor": "Says what works on this machine, and what to do about the rest.",
    "engines": "Serves engines that several runs share: one base, all adapters.",
    "serve": "Serves environments to others over HTTP and WebSocket (OpenEnv).",
    "mcp": "Plays an environment's tasks for agents that call tools over MCP.",
    "training-tool": "Serves training as a tool to agents, over MCP on standard input.",
    "prepare-data": "Generates, downloads, converts and validates task files.",
}
"""By name: a module of `launch/`, or that of `_MODULES`, has `main`, its `CommandLine`."""
_MODULES = {
    "watch": "reporting.watch",
    "diff": "reporting.diff",
    "replay": "playing.replay",
    "play": "playing.play",
    "engines": "serving.shared_engines",
    "mcp": "serving.mcp_server",
    "training-tool": "agent_tool.tool_server",
}


def module_of(name: str) -> str:
    """Returns the module of a command."""
    return f"agentpeft.launch.{_MODULES.get(name, name.replace('-', '_'))}"


class _Commands(TyperGroup):
    """Imports the module of a command when it is run or completed, not to list it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns a command's name, the command, and the words that are left for it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            module = import_module(module_of(name))
            command = get_command(module.main)
        return name, command, rest


main = CommandLine("agentpeft", cls=_Commands, help=__doc__, invoke_without_command=True)
completion_init()


def _list_only() -> None:
    """Stands for a command until `_Commands` has imported it."""


for _name, _about in COMMANDS.items():
    main.command(_name, help=_about)(_list_only)


@main.callback()
def _show_help(context: Context) -> None:
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
