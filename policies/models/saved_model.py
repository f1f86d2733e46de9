"""Models that are saved, in a folder or on the Hugging Face hub, and adapters' bases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import import_user_module
from agentpeft.policies.checkpointing.reading import check_policy
from agentpeft.policies.delivery.adapter_files import read_base_name
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.models.policy_base import PolicyBase, place
from agentpeft.policies.models.scoring import use_float_head
from agentpeft.policies.settings.config import ModelSettings

_NOT_NEEDED = ["original/*", "onnx/*", "*.gguf", "*.h5", "*.msgpack", "*.pth"]
_PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load_saved(
    model: ModelSettings, device: torch.device, dtype: torch.dtype, is_frozen: bool
) -> PolicyBase:
    """Returns the model that the settings name, or an adapter's base. Raises: SettingsError."""
    options: dict[str, Any] = {"dtype": dtype, "local_files_only": True}
    if model.is_in_4_bits:
        from agentpeft.policies.models.four_bits import make_four_bit_config

        options["quantization_config"] = make_four_bit_config(dtype)
        options["device_map"] = {"": device}
    name, folder, adapter_path = _find_base(model)
    try:
        check_policy(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
        tokenizer = _load_tokenizer(folder)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise SettingsError(f"model {name!r} cannot be loaded: {_first_line(error)}") from None
    network: PreTrainedModel = loaded[0]
    _check_whole(name, network, loaded[1], tokenizer)
    if model.is_in_4_bits:
        from agentpeft.policies.models.four_bits import keep_layout

        keep_layout(network)
    else:
        place(network, device, folder if is_frozen else None)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    use_float_head(network)
    source = str(folder) if _is_path(name) else name
    return PolicyBase(network.train(False), tokenizer, source, adapter_path)


def find_saved(model: ModelSettings) -> tuple[Path, PreTrainedTokenizerBase]:
    """Returns the folder and the tokenizer of what `load_saved` loads. Raises: SettingsError."""
    name, folder, _ = _find_base(model)
    try:
        return folder, _load_tokenizer(folder)
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(f"model {name!r} cannot be loaded: {_first_line(error)}") from None


def _find_base(model: ModelSettings) -> tuple[str, Path, str | None]:
    """Returns the base's name and folder, and the adapter that training starts from."""
    name, adapter_path = _import_own_classes(model.name), model.adapter
    folder = Path(name).expanduser()
    if (folder / ADAPTER_CONFIG).is_file():
        name, adapter_path = _base_of_adapter(folder), str(folder.resolve())
    folder = Path(name).expanduser().resolve() if _is_path(name) else _fetch(name)
    if not (folder / "config.json").is_file():
        raise SettingsError(f"model.name {name!r} is no folder of a model (no config.json)")
    return name, folder, adapter_path


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
        from agentpeft.policies.models.tiny_cache import is_cached_name

        remedy = (
            "it is a built-in model, which `agentpeft train --resume RUN` makes again, unless its "
            "settings or code have changed"
            if is_cached_name(name)
            else "put it there, or name the base itself as the model and this folder as its adapter"
        )
        raise SettingsError(
            f"the adapter {folder} was trained on the base {name}, which is not there: {remedy}"
        )
    return name


def _is_path(name: str) -> bool:
    """Returns whether a name cannot be a hub id ("name" or "owner/name")."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).exists()


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
