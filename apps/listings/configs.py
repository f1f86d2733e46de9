"""Lists the presets, a line each.

```sh
agentpeft configs
agentpeft train quickstart --dry-run     # all settings of one
```
"""

import sys

from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.run_folder import CONFIGS

main = CommandLine()


@main.add(help=__doc__)
def configs() -> int:
    """Prints each preset's name and the first sentence of its file."""
    for path in sorted(CONFIGS.glob("*.toml")):
        comment, _, _ = path.read_text(encoding="utf-8").partition("\nexperiment")
        text = " ".join(line.removeprefix("# ") for line in comment.splitlines())
        print(f"{path.stem:<24} {text.partition('. ')[0].removesuffix('.')}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
