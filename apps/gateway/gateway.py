r"""Trains the model behind a program of yours, which asks it as it asks any OpenAI-style server.

```sh
agentpeft gateway arithmetic_add --command "python my_agent.py"
agentpeft gateway mine.toml training.lr=1e-3 --url http://localhost:9000/play
```

Each episode starts the program anew, with `OPENAI_BASE_URL`, `OPENAI_API_KEY` and the task
(`AGENTPEFT_TASK`, and on standard input); what it prints is its answer. `--url` names servers that
run already. All else is as in `agentpeft train`: this command sets `env_runners.agent`, and eight
episodes a CPU at once (`env_runners.max_concurrent_episodes=N`: another number).
"""

import json
import os
import sys
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
_CLASS = "agentpeft.apps.gateway.agent:Gateway"


@main.add(help=__doc__)
def gateway(
    words: SettingsWords = None,
    *,
    command: Annotated[str | None, Option("--command", help="The program, with arguments.")] = None,
    url: Annotated[
        list[str] | None, Option("--url", help="A server that plays; may be repeated.")
    ] = None,
    dry_run: DryRun = False,
    fast_dev_run: FastDevRun = False,
    as_json: AsJson = False,
) -> int:
    """Trains as the settings say, with a program as the agent, and prints the summary."""
    if (command is None) == (not url):
        raise SettingsError('give --command "python my_agent.py", or --url')
    configs, overrides = split_settings(words)
    folder = str(Path.cwd()) if command else None
    agent = {"class": _CLASS, "command": command, "url": url, "folder": folder}
    texts = {n: json.dumps(value, ensure_ascii=False) for n, value in agent.items() if value}
    said = [f"agent.{name}={text}" for name, text in texts.items()]
    said.append(f"max_concurrent_episodes={8 * (os.cpu_count() or 1)}")
    # In front of the user's own words, which win
    words = [*configs, *(f"env_runners.{word}" for word in said), *overrides]
    return train(words, dry_run=dry_run, fast_dev_run=fast_dev_run, as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
