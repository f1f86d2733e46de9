r"""Serves engines that several runs share: one base in memory, and the adapters of all runs.

```sh
ray start --head
agentpeft engines arithmetic_add --name sweep --slots 4 --address auto
agentpeft train arithmetic_add training.lr=1e-3 env_runners.engine=vllm \
    env_runners.shared_engines=agentpeft.apps.shared_engines:sweep --address auto
```

The settings say which model (`model`), up to which rank (`lora.rank`), how many engines
(`env_runners.num_env_runners`) and on what (`env_runners.num_gpus_per_env_runner`, …). Standard
output is one JSON line, once the engines serve; then it says on standard error who comes and goes.
Ctrl-C or SIGTERM ends the engines.
"""

import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from agentpeft.envs import SettingsError
from agentpeft.launch.run.command_line import CommandLine, SettingsWords, split_settings
from agentpeft.launch.run.run_folder import read_start
from agentpeft.launch.run.stop_signals import Stopped, StopSignals

if TYPE_CHECKING:  # it imports torch
    from agentpeft.apps.shared_engines.group import SharedEngines

logger = logging.getLogger(__name__)
main = CommandLine()
_LOOK_S = 2.0


@main.add(help=__doc__)
def engines(
    words: SettingsWords = None,
    *,
    name: Annotated[str, Option("--name", help="What runs call them by.")] = "shared",
    slots: Annotated[
        int, Option("--slots", min=1, help="Adapter versions that each serves at once.")
    ] = 8,
    address: Annotated[
        str | None, Option("--address", help="Ray cluster; else RAY_ADDRESS.")
    ] = None,
) -> int:
    """Starts the engines, and serves until it is stopped."""
    from agentpeft.apps.shared_engines.group import SharedEngines
    from agentpeft.launch.checking.preparation import prepare_tiny
    from agentpeft.launch.data.task_files import with_task_files
    from agentpeft.launch.run.ray_session import ray_session

    address = address or os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        raise SettingsError(
            "runs share engines in a cluster: name one (ray start --head starts it)"
        )
    configs, overrides = split_settings(words)
    settings = read_start(configs, [*overrides, "env_runners.engine=vllm"]).settings
    settings = with_task_files(settings)
    if not settings.lora.use_lora:
        raise SettingsError("lora.rank is 0: only adapters are served side by side")
    signals = StopSignals()
    try:
        with signals.handle(), ray_session(address, Path(settings.output.dir)):
            signals.take_back()
            with signals.immediately():
                prepare_tiny(settings)
            with signals.immediately(), SharedEngines(settings, name, slots) as shared:
                told = {"name": name, "engines": len(shared.look()), "slots": slots}
                print(json.dumps(told), flush=True)
                _watch(shared, slots)
    except Stopped as stop:
        return stop.exit_status
    return 0


def _watch(shared: "SharedEngines", slots: int) -> None:
    """Says who comes and goes, until it is interrupted."""
    before: list[str] = []
    while True:
        now = [
            f"engine {number}: {slots - state.num_free} of {slots} slots taken "
            f"({', '.join(f'{run}: {count}' for run, count in state.runs.items()) or 'no runs'})"
            for number, state in shared.look().items()
        ]
        for line in [line for line in now if line not in before]:
            logger.info(line)
        before = now
        time.sleep(_LOOK_S)
