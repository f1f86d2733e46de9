"""AgentPEFT: text environments for LLM agents, and LoRA training on them by RL.

In a checkout, and in a working directory that Ray has uploaded, the folders `envs`, `policies`,
`launch` and `apps` lie beside this one; in a wheel they are in it. The links in this folder are for
editors and type checkers, which read the tree without running this file.

Importing it is cheap, also for `gymnasium.make("agentpeft:AgentPEFT/DBBench-v0")`, which imports it
and then wants the environments to be registered: `agentpeft.envs` is imported with gymnasium.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__version__ = "0.1.0"

_checkout = Path(__file__).resolve().parents[1]
if (_checkout / "policies" / "settings" / "config.py").is_file():  # no package beside a wheel
    __path__.insert(0, str(_checkout))


class _RegistersWithGymnasium(MetaPathFinder):
    """Finds gymnasium, and imports `agentpeft.envs` right after it.

    A package that is imported already is not run again, so its import cannot wait for `make`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns gymnasium's spec; None for all other modules."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "gymnasium" else None
        if spec is not None and spec.loader is not None:
            run_gymnasium = spec.loader.exec_module

            def run_both(module: ModuleType) -> None:
                run_gymnasium(module)
                import_module("agentpeft.envs")

            spec.loader.exec_module = run_both  # type: ignore[method-assign]
        return spec


if "gymnasium" in sys.modules:
    import_module("agentpeft.envs")
else:
    sys.meta_path.insert(0, _RegistersWithGymnasium())
