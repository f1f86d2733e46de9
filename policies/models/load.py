"""Which base a run stands on: the built-in model, a Hugging Face model, or an adapter's base.

`tiny_cache` is imported where it is needed: it plays environments, and learners of other models
are for machines without any, too.
"""

import fcntl
import gc
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from agentpeft.envs import SettingsError
from agentpeft.envs.core.user_code import import_user_module
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.delivery.version import ADAPTER_CONFIG, read_base_name
from agentpeft.policies.models.float_head import use_float_head
from agentpeft.policies.models.policy_base import PolicyBase, Progress, place_frozen
from agentpeft.policies.settings.config import ModelSettings, Settings

__all__ = [
    "PolicyBase",
    "Progress",
    "choose_device",
    "choose_dtype",
    "choose_serving",
    "find_base",
    "find_served_base",
    "load_base",
    "load_served_base",
    "travels_in_bfloat16",
    "uses_autocast",
]

_MIN_PARAMETERS_FOR_CPU_AUTOCAST = 50_000_000
_NOT_NEEDED = ["original/*", "onnx/*", "*.gguf", "*.h5", "*.msgpack", "*.pth"]
_PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
logger = logging.getLogger(__name__)


def load_base(
    settings: Settings,
    num_gpus: float = 0.0,
    progress: Progress | None = None,
    *,
    stays_on_cpu: bool = False,
    is_frozen: bool = False,
) -> PolicyBase:
    """Returns the base of `settings.model` on a GPU if `num_gpus` > 0, in evaluation mode.

    A base that `is_frozen` shares its weights with others of this process, so nobody may write
    into them; one in 4 bits has its own.

    With `stays_on_cpu` it has the type that it has there, but is not moved to the GPU. Such weights
    are pages of the model's files, where these have that type; they take no memory of their own.
    The tiny model is made, and warm-started, where it is not in the cache. A name `module:rest`
    imports `module` first, as to register one's own classes with `AutoModelForCausalLM`. Nothing
    is fetched for local folders. Raises: SettingsError, in one line.
    """
    device, model = choose_device(num_gpus), settings.model
    dtype = choose_dtype(model, device)
    device = torch.device("cpu") if stays_on_cpu else device
    if model.name == "tiny":
        from agentpeft.policies.models.tiny_cache import load_tiny

        base = load_tiny(settings, progress)
        base.model.to(dtype)  # type: ignore[arg-type]
        _place(base.model, device, Path(base.name) if is_frozen else None)
        use_float_head(base.model)
        return replace(base, adapter_path=model.adapter)
    name = _import_own_classes(model.name)
    folder = Path(name).expanduser()
    if (folder / ADAPTER_CONFIG).is_file():
        path = str(folder.resolve())
        return _load(_base_of_adapter(folder), model, device, dtype, path, is_frozen)
    return _load(name, model, device, dtype, model.adapter, is_frozen)


def load_served_base(settings: Settings, num_gpus: float = 0.0) -> PolicyBase:
    """Returns the base as an engine serves it: of 4 bits a copy in the base's type.

    Its weights are those that the learner's 4 bits stand for. Others are shared: see `is_frozen`.
    Raises: SettingsError.
    """
    base = load_base(settings, num_gpus, is_frozen=True)
    if not settings.model.load_in_4bit:
        return base
    dtype = choose_dtype(settings.model, choose_device(num_gpus))
    plain = base.model.dequantize(dtype)  # type: ignore[no-untyped-call]
    return replace(base, model=plain.train(False))


def choose_device(num_gpus: float) -> torch.device:
    """Returns where to compute. Raises: SettingsError if a GPU is asked for where none is."""
    if num_gpus > 0 and not torch.cuda.is_available():
        raise SettingsError(
            f"a GPU is asked for ({num_gpus:g}) and torch {torch.__version__} sees none: set "
            "learners.num_gpus_per_learner and env_runners.num_gpus_per_env_runner to 0"
        )
    return torch.device("cuda" if num_gpus > 0 else "cpu")


def choose_dtype(model: ModelSettings, device: torch.device) -> torch.dtype:
    """Returns the type of the base's weights."""
    is_bfloat16 = model.dtype == "bfloat16" or (model.dtype == "auto" and device.type == "cuda")
    return torch.bfloat16 if is_bfloat16 else torch.float32


def choose_serving(settings: Settings, dtype: torch.dtype) -> Literal["native", "fused"]:
    """Returns how adapters are served over a base of this type."""
    asked = settings.env_runners.serving
    if asked != "auto":
        return asked
    return "native" if dtype == torch.bfloat16 and settings.lora.use_lora else "fused"


def uses_autocast(settings: Settings, model: nn.Module, device: torch.device) -> bool:
    """Returns whether updates compute in bfloat16; a small model on a CPU is bound by overhead."""
    if settings.learners.autocast != "auto":
        return settings.learners.autocast == "bfloat16"
    num_parameters = sum(p.numel() for p in model.parameters())
    return device.type != "cpu" or num_parameters >= _MIN_PARAMETERS_FOR_CPU_AUTOCAST


def travels_in_bfloat16(settings: Settings, model: nn.Module) -> bool:
    """Returns whether an adapter loses nothing in bfloat16 that any of its readers would see.

    Under autocast the learner, whose `model` it is, rounds A and B to it in every pass, as slots
    over a bfloat16 base do.
    """
    device = choose_device(settings.env_runners.num_gpus_per_env_runner)
    is_served = choose_dtype(settings.model, device) == torch.bfloat16
    is_computed = uses_autocast(settings, model, next(model.parameters()).device)
    return settings.lora.use_lora and is_served and is_computed


def _import_own_classes(name: str) -> str:
    module, colon, rest = name.partition(":")
    if not colon or Path(name).expanduser().exists():
        return name
    try:
        import_user_module(module)
    except SettingsError as error:
        raise SettingsError(f"model.name {name!r}: {error}") from error
    return rest


def _base_of_adapter(folder: Path) -> str:
    try:
        name = read_base_name(folder)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{folder / ADAPTER_CONFIG} names no base model: {error!r}") from None
    if _is_path(name) and not Path(name).expanduser().is_dir():
        raise SettingsError(
            f"the adapter {folder} was trained on the base {name}, which is not there; start from "
            "the base's own name, with --resume-from for the adapter"
        )
    return name


def _is_path(name: str) -> bool:
    """Returns whether a name cannot be a hub id ("name" or "owner/name")."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).exists()


def _load(
    name: str,
    model: ModelSettings,
    device: torch.device,
    dtype: torch.dtype,
    adapter_path: str | None,
    is_frozen: bool,
) -> PolicyBase:
    options: dict[str, Any] = {"dtype": dtype, "local_files_only": True}
    if model.load_in_4bit:
        options["quantization_config"] = _four_bit(options["dtype"])
        options["device_map"] = {"": device}
    folder = _find_folder(name)
    try:
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
        tokenizer = _load_tokenizer(folder)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise SettingsError(f"model {name!r} cannot be loaded: {_first_line(error)}") from None
    network: PreTrainedModel = loaded[0]
    _check_whole(name, network, loaded[1], tokenizer)
    if model.load_in_4bit:
        _keep_layout(network)
    else:
        _place(network, device, folder if is_frozen else None)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    use_float_head(network)
    source = str(folder) if _is_path(name) else name
    return PolicyBase(network.train(False), tokenizer, source, adapter_path)


def _check_whole(
    name: str,
    network: PreTrainedModel,
    info: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Raises: SettingsError on what transformers only warns of, and replaces by random weights.

    Tensors of the files that the model has not are no hindrance: other models are saved with it.
    """
    if missing := sorted(info["missing_keys"]):
        raise SettingsError(
            f"model {name!r}: its files lack {missing[0]} (and {len(missing) - 1} more), which "
            "its config.json asks for: fetch or save the model anew, or mend its config.json"
        )
    if wrong := sorted(info["mismatched_keys"]):
        key, of_file, of_config = wrong[0]
        raise SettingsError(
            f"model {name!r}: {key} has the shape {tuple(of_file)} in its files, and "
            f"{tuple(of_config)} by its config.json ({len(wrong) - 1} more differ)"
        )
    embeddings: Any = network.get_input_embeddings()
    head = network.get_output_embeddings()  # type: ignore[no-untyped-call]
    is_tied = head is None or head.weight is embeddings.weight
    says_tied = network._tied_weights_keys and getattr(network.config, "tie_word_embeddings", False)
    if says_tied and not is_tied:
        raise SettingsError(
            f"model {name!r}: config.json says tie_word_embeddings = true, and its files have "
            "other weights for the output layer than for the embeddings: set it to false there"
        )
    if tokenizer.vocab_size > len(embeddings.weight):
        raise SettingsError(
            f"model {name!r}: its tokenizer has {tokenizer.vocab_size} tokens, and the model "
            f"{len(embeddings.weight)}: one of them is another model's"
        )


def _place(network: PreTrainedModel, device: torch.device, shared_from: Path | None) -> None:
    """Moves a model to its device; one from a folder that others share takes their weights."""
    if shared_from is None:
        network.to(device)  # type: ignore[arg-type]
    else:
        place_frozen(network, _states_of_files(shared_from), device)


def find_base(settings: Settings) -> tuple[Path, PreTrainedTokenizerBase]:
    """Returns the base's folder and its tokenizer, without loading weights.

    But for the tiny model, which is made where it is not in the cache. Raises: SettingsError.
    """
    if settings.model.name == "tiny":
        from agentpeft.policies.models.tiny_cache import load_tiny

        base = load_tiny(settings)
        return Path(base.name), base.tokenizer
    name = _import_own_classes(settings.model.name)
    if (Path(name).expanduser() / ADAPTER_CONFIG).is_file():
        name = _base_of_adapter(Path(name).expanduser())
    folder = _find_folder(name)
    try:
        return folder, _load_tokenizer(folder)
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(f"model {name!r} cannot be loaded: {_first_line(error)}") from None


def find_served_base(
    settings: Settings, num_gpus: float = 0.0
) -> tuple[Path, PreTrainedTokenizerBase]:
    """Returns the folder of the weights that an engine with a loader of its own serves.

    As `find_base`, but that a base in 4 bits is written into the cache as `load_served_base` has
    it, once on each machine. Raises: SettingsError.
    """
    folder, tokenizer = find_base(settings)
    if not settings.model.load_in_4bit:
        return folder, tokenizer
    _need_quantizer()
    from agentpeft.policies.models.tiny_cache import CACHE_VARIABLE, cache_dir

    cache = cache_dir()
    copy = cache / f"dequantized-{_key_of_copy(folder, settings, num_gpus)}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with copy.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the runners of a machine begin at once
            if not copy.is_dir():
                logger.info("writes what the 4 bits of %s stand for to %s", folder, copy)
                with making(copy, kind="dequantized") as new:
                    load_served_base(settings, num_gpus).model.save_pretrained(new)
                gc.collect()
                torch.cuda.empty_cache()  # the engine takes a share of what is free
    except (OSError, SafetensorError) as error:
        raise SettingsError(
            f"the cache {cache} cannot be written ({error}); set {CACHE_VARIABLE}"
        ) from None
    return copy, tokenizer


def _key_of_copy(folder: Path, settings: Settings, num_gpus: float) -> str:
    """Returns 16 hexadecimal digits over what the numbers of a dequantized copy depend on."""
    device = choose_device(num_gpus)
    dtype = choose_dtype(settings.model, device)
    wanted = (_states_of_files(folder), str(dtype), device.type, version("bitsandbytes"))
    return hashlib.sha256(repr(wanted).encode()).hexdigest()[:16]


def _states_of_files(folder: Path) -> tuple[tuple[str, int], ...]:
    """Returns a model's files, and when each was written."""
    files = [folder / "config.json", *folder.glob("*.safetensors"), *folder.glob("*.bin")]
    return tuple((str(path.resolve()), path.stat().st_mtime_ns) for path in sorted(files))


def _find_folder(name: str) -> Path:
    folder = Path(name).expanduser().resolve() if _is_path(name) else _fetch(name)
    if not (folder / "config.json").is_file():
        raise SettingsError(f"model.name {name!r} is no folder of a model (no config.json)")
    return folder


def _fetch(name: str) -> Path:
    """Returns the folder of a hub model: what is in the cache where there is no network."""
    from agentpeft.envs.tasks.hub import is_hub_reachable

    is_online = is_hub_reachable()
    try:
        return Path(
            snapshot_download(name, local_files_only=not is_online, ignore_patterns=_NOT_NEEDED)
        )
    except (OSError, ValueError) as error:
        lacks = _first_line(error) if is_online else "there is no network, nor a copy in the cache"
        raise SettingsError(
            f"model {name!r} is no folder, and cannot be had from the Hugging Face hub: {lacks} "
            "(built in: 'tiny')"
        ) from None


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer; one that names no class of its own exactly as it was saved.

    `AutoTokenizer` would give every Qwen2 model Qwen2's own normalisation.
    """
    config = get_tokenizer_config(folder, local_files_only=True)
    plain = config.get("tokenizer_class") in _PLAIN_TOKENIZERS
    loader = PreTrainedTokenizerFast if plain else AutoTokenizer
    tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(folder, local_files_only=True)
    # Without its files transformers makes one of special tokens alone
    if not tokenizer.encode("text 12", add_special_tokens=False):
        raise ValueError("its tokenizer has no vocabulary (tokenizer.json or its model's own file)")
    return tokenizer


def _first_line(error: Exception) -> str:
    """Returns an error's first line, with what follows where that ends in a colon."""
    line, _, rest = str(error).strip().partition("\n")
    return f"{line} {' '.join(rest.split())}"[:400] if line.rstrip().endswith(":") else line


def _keep_layout(network: PreTrainedModel) -> None:
    """Keeps bitsandbytes from packing weights in place, on CPUs with bfloat16 instructions.

    It would do so in evaluation mode, and in training fail on what it has packed.
    """
    from bitsandbytes.nn import Linear4bit  # slow to import, and seldom there

    for layer in network.modules():
        if isinstance(layer, Linear4bit):
            layer.support_avx512bf16_for_cpu = False


def _need_quantizer() -> None:
    for package in ("bitsandbytes", "accelerate"):
        if find_spec(package) is None:
            raise SettingsError(
                f"model.load_in_4bit needs {package}: pip install 'agentpeft[quantize]', or set "
                "it to false"
            )


def _four_bit(dtype: torch.dtype) -> BitsAndBytesConfig:
    _need_quantizer()
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )
