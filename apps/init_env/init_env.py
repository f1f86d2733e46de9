"""Writes a small environment of your own, its settings and a test, all three working.

```sh
agentpeft init-env my_env.py
agentpeft train my_env.toml
```

Exit status: 0 done; 2 a name that cannot be taken, or a file that is there already.
"""

import sys
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

from typer import Argument

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.run_folder import as_word, shown

_TEMPLATE = "sort_env"
main = CommandLine()


@main.add(help=__doc__)
def init_env(
    path: Annotated[Path, Argument(metavar="FILE.py", help="The environment's file to write.")],
) -> int:
    """Writes the three files, and says what to do next."""
    for file, text in make_files(path).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, text.encode())
        print(f"wrote {shown(file.absolute())}")
    print(f"next: agentpeft train {as_word(path.absolute().with_suffix('.toml'))}")
    return 0


def make_files(path: Path) -> dict[Path, str]:
    """Returns the text of each new file by its path.

    Raises: SettingsError for a name that Python cannot import as this file, or that is taken.
    """
    module = path.stem
    is_name = module.isidentifier() and module.isascii() and module[0] != "_"
    if path.suffix != ".py" or not is_name or iskeyword(module):
        raise SettingsError(f"expected a Python file such as my_env.py, got {str(path)!r}")
    names = _name_files(module)
    for file in map(path.with_name, names):
        if file.exists():
            raise SettingsError(f"{file} is there already: choose another name")
    if module in sys.builtin_module_names or find_spec(module) is not None:
        raise SettingsError(f"there is a module {module!r} already: choose another name")
    words = "".join(word[:1].upper() + word[1:] for word in module.split("_"))
    class_name = f"{words.removesuffix('Env')}Env"
    files = {}
    for name, template in zip(names, _name_files(_TEMPLATE), strict=True):
        text = Path(__file__).with_name(template).read_text(encoding="utf-8")
        text = text.replace(f"{__package__}.", "").replace(_TEMPLATE, module)
        files[path.with_name(name)] = text.replace("SortEnv", class_name)
    return files


def _name_files(module: str) -> list[str]:
    return [f"{module}.py", f"{module}.toml", f"test_{module}.py"]


if __name__ == "__main__":
    sys.exit(main())
