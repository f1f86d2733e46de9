"""AgentPEFT: text environments for LLM agents, and LoRA training on them by RL.

    import gymnasium
    from agentpeft import AlgorithmConfig, TextEnv

    env = gymnasium.make("agentpeft:AgentPEFT/DBBench-v0")
    config = AlgorithmConfig().environment("AgentPEFT/Arithmetic-v0").training(lr=1e-3)

`agentpeft.envs` is the Gymnasium suite, `AlgorithmConfig` trains, and `TextEnv` is the base of an
environment of your own. The command `agentpeft` does the same from files of settings. Importing
this is cheap: names are loaded at their first use.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentpeft import envs
    from agentpeft.envs import TextEnv
    from agentpeft.policies.settings.algorithm_config import AlgorithmConfig

__all__ = ["AlgorithmConfig", "TextEnv", "__version__", "envs"]
__version__ = "0.1.0"

# In a checkout, and in a working directory that Ray has uploaded, the rooms lie beside this folder;
# in a wheel they are in it. The links here are for editors and type checkers.
_checkout = Path(__file__).resolve().parents[1]
if (_checkout / "policies" / "settings" / "config.py").is_file():  # no package beside a wheel
    __path__.insert(0, str(_checkout))


def __getattr__(name: str) -> Any:
    """Returns what is loaded at its first use."""
    match name:
        case "envs":
            return import_module("agentpeft.envs")
        case "TextEnv":
            return import_module("agentpeft.envs").TextEnv
        case "AlgorithmConfig":
            return import_module("agentpeft.policies.settings.algorithm_config").AlgorithmConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names."""
    return __all__


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
