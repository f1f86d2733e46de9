r"""Trains the model behind a program of yours, which asks it as it asks any OpenAI-style server.

```sh
agentpeft gateway arithmetic_add --command "python my_agent.py"
agentpeft gateway mine.toml training.lr=1e-3 --url http://localhost:9000/play
```

Each episode starts the program anew, with `OPENAI_BASE_URL`, `OPENAI_API_KEY` and the task
(`AGENTPEFT_TASK`, and on standard input); what it prints is its answer. `--url` names servers that
run already. All else is as in `agentpeft train`: this command sets `env_runners.agent`.
"""

import json
import os
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Option

from agentpeft.envs import SettingsError
from agentpeft.launch.run.command_line import (
    CommandLine,
    DryRun,
    FastDevRun,
    SettingsWords,
    split_settings,
)
from agentpeft.launch.run.ending import AsJson
from agentpeft.launch.train import train

main = CommandLine()
_EPISODES = "env_runners.max_concurrent_episodes"
_CLASS = "agentpeft.apps.gateway.agent:Gateway"


@main.add(help=__doc__)
def gateway(  # noqa: PLR0913 (options, by keyword only)
    words: SettingsWords = None,
    *,
    command: Annotated[str | None, Option("--command", help="The program, with arguments.")] = None,
    url: Annotated[
        list[str] | None, Option("--url", help="A server that plays; may be repeated.")
    ] = None,
    at_once: Annotated[
        int | None, Option("--at-once", min=1, help="Programs that run at once; else 8 a CPU.")
    ] = None,
    dry_run: DryRun = False,
    fast_dev_run: FastDevRun = False,
    as_json: AsJson = False,
) -> int:
    """Trains as the settings say, with a program as the agent, and prints the summary."""
    if (command is None) == (not url):
        raise SettingsError('name the program, as --command "python my_agent.py", or its --url')
    configs, overrides = split_settings(words)
    folder = str(Path.cwd()) if command is not None else None
    agent = {"class": _CLASS, "command": command, "url": url, "folder": folder}
    for name, value in agent.items():
        if value is not None:
            overrides.insert(0, f"env_runners.agent.{name}={json.dumps(value)}")
    most = at_once or 8 * (os.cpu_count() or 1)
    if at_once or not sets_episodes(configs, overrides):
        overrides.append(f"{_EPISODES}={most}")
    return train(
        [*configs, *overrides], dry_run=dry_run, fast_dev_run=fast_dev_run, as_json=as_json
    )


def sets_episodes(configs: Sequence[str], overrides: Sequence[str]) -> bool:
    """Returns whether the user says how many episodes there are at once, in a file or a word."""
    section, _, name = _EPISODES.partition(".")
    said = any(word.partition("=")[0].strip() == _EPISODES for word in overrides)
    for config in configs:
        with suppress(OSError, ValueError, TypeError):  # `train` says what is wrong with it
            said |= name in tomllib.loads(Path(config).read_text("utf-8")).get(section, ())
    return said


if __name__ == "__main__":
    sys.exit(main())
