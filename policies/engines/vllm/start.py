"""Starting a vLLM engine: its process, its cores, and what vLLM reads from the environment."""

import logging
import os
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from agentpeft.envs.core.errors import SettingsError, import_user_module, is_installed
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.vllm.cores import CoreClaim
from agentpeft.policies.engines.vllm.settings import VllmSettings, read_vllm_settings
from agentpeft.policies.models.base_files import find_served_base
from agentpeft.policies.models.policy_base import stop_tokens_of
from agentpeft.policies.rollout.chat import ChatFormat, open_chat
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.owned_process import NOTES_VARIABLE, owned_children

if TYPE_CHECKING:  # it imports vllm, which reads the environment
    from agentpeft.policies.engines.vllm.process import VllmProcess

logger = logging.getLogger(__name__)
Start: TypeAlias = Callable[[Settings, str], tuple[ChatFormat, Engine]]
FLASHINFER_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
VARIABLES = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on a CPU, else: a third process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""What vLLM's process has in its environment, unless the user has set it."""


def start_vllm(settings: Settings) -> tuple[ChatFormat, Engine]:
    """Returns how the settings' model reads and writes, and the engine that serves it.

    The weights are loaded in vLLM's process alone. Raises: SettingsError.
    """
    check_vllm()
    folder, tokenizer = find_served_base(settings, settings.env_runners.num_gpus_per_env_runner)
    engine_settings = read_vllm_settings(settings, folder)
    chat = open_chat(
        tokenizer, settings, read_stop_tokens(folder), engine_settings.max_context_tokens
    )
    return chat, start_engine(folder, chat.stop_token_ids, engine_settings)


def start_shared(settings: Settings) -> tuple[ChatFormat, Engine]:
    """Returns the same of engines that runs share. Raises: SettingsError.

    `env_runners.shared_engines` is `module:name`; the module's `start_shared` starts what is named.
    """
    named = str(settings.env_runners.shared_engines)
    module_name, _, name = named.partition(":")
    try:
        start: Start = vars(import_user_module(module_name))["start_shared"]
    except (SettingsError, KeyError) as error:
        problem = error if isinstance(error, SettingsError) else f"{module_name} has no {error}"
        raise SettingsError(f"env_runners.shared_engines {named!r}: {problem}") from error
    return start(settings, name)


def read_stop_tokens(folder: Path) -> tuple[int, ...]:
    """Returns the stop tokens that a saved model's generation config names."""
    has_config = (folder / GENERATION_CONFIG_NAME).is_file()
    return stop_tokens_of(GenerationConfig.from_pretrained(folder) if has_config else None)


def start_engine(folder: Path, stop_token_ids: Iterable[int], settings: VllmSettings) -> Engine:
    """Returns an engine over a saved model, with a process of its own. Raises: SettingsError."""
    process = start_process(folder, settings)
    from agentpeft.policies.engines.vllm.engine import VllmEngine  # vllm reads the environment

    return VllmEngine(process, stop_token_ids, settings)


def start_process(folder: Path, settings: VllmSettings) -> "VllmProcess":
    """Returns vLLM over a saved model; its process ends with this one, however that ends.

    On a CPU its threads have cores of their own while there are enough. Raises: SettingsError.
    """
    claim = CoreClaim(0 if settings.gpu_share else settings.num_threads * settings.num_parts)
    try:
        with TemporaryDirectory(prefix="agentpeft-vllm-") as notes:
            exceptions = Path(notes, "exceptions.jsonl")
            variables = make_variables(settings) | {NOTES_VARIABLE: str(exceptions)}
            with owned_children(variables, claim.cores):
                start_s = time.monotonic()
                from agentpeft.policies.engines.vllm.process import VllmProcess

                logger.info("vLLM: imported in %.1f s", time.monotonic() - start_s)
                return VllmProcess(folder, settings, claim, exceptions)
    except ImportError as error:
        claim.close()
        raise SettingsError(f"vLLM cannot be imported: {' '.join(str(error).split())}") from error
    except BaseException:
        claim.close()
        raise


def make_variables(settings: VllmSettings) -> dict[str, str]:
    """Returns what vLLM's process has in its environment; what the user has set stays."""
    # For CPUs vLLM compiles in C++ what ranks each log-probability, which nobody reads
    variables = VARIABLES | ({} if settings.gpu_share else {"TORCH_COMPILE_DISABLE": "1"})
    if settings.gpu_share and find_spec("flashinfer") is None:
        if FLASHINFER_SAMPLER not in os.environ:
            logger.info("FlashInfer is not installed: vLLM samples by a kernel of its own")
        variables[FLASHINFER_SAMPLER] = "0"
    variables = {name: os.environ.get(name, value) for name, value in variables.items()}
    variables["OMP_NUM_THREADS"] = str(settings.num_threads)
    if settings.num_parts > 1:  # bound, on a CPU, each would want a memory node of its own
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    return variables


def check_vllm() -> None:
    """Raises: SettingsError where vLLM is not installed."""
    if not is_installed("vllm"):
        raise SettingsError(
            "env_runners.engine = 'vllm' needs vLLM: with a GPU pip install 'agentpeft[vllm]', "
            "without one make vllm"
        )
