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

from agentpeft.envs.registration import find_creator
from agentpeft.launch.run.command_line import CommandLine

main = CommandLine()


@main.add(help=__doc__)
def envs() -> int:
    """Prints each id and the first line of its class's docstring."""
    for env_id in sorted(gymnasium.registry):
        if env_id.startswith("AgentPEFT/"):
            kind = find_creator(env_id)
            print(f"{env_id:<27} {(inspect.getdoc(kind) or '').partition(chr(10))[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
