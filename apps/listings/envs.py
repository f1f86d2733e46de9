"""Lists the environments, a line each.

```sh
agentpeft envs
agentpeft play AgentPEFT/Arithmetic-v0
```

An environment of your own has the id `module:Name-v0`; `agentpeft init-env` writes one.
"""

import inspect
import sys

import gymnasium
from gymnasium.envs.registration import load_env_creator

from agentpeft.launch.run.command_line import CommandLine

main = CommandLine()


@main.add(help=__doc__)
def envs() -> int:
    """Prints each id and the first line of its class's docstring."""
    for env_id, spec in sorted(gymnasium.registry.items()):
        if env_id.startswith("AgentPEFT/"):
            kind = load_env_creator(str(spec.entry_point))
            print(f"{env_id:<27} {(inspect.getdoc(kind) or '').partition(chr(10))[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
