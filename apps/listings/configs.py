"""Lists the presets, a line each.

```sh
agentpeft configs
agentpeft train quickstart --dry-run     # all settings of one
```
"""

import sys

from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.run_folder import list_configs

main = CommandLine()


@main.add(help=__doc__)
def configs() -> int:
    """Prints each preset's name and the first line of its file."""
    for name, about in list_configs().items():
        print(f"{name:<24} {about}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
