"""Merges an adapter into its base, and compares the written model with the two.

Both checks load the written model: its log-probabilities are those of the unmerged pair, and
taking the adapter away again leaves the base. What a run on all weights has saved is a whole model
already: it is written as it is, and both checks compare the copy with it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import making
from agentpeft.launch.costs.resources import read_model_config
from agentpeft.launch.run.run_folder import shown
from agentpeft.policies.delivery.adapter_files import is_whole_model
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.open_adapters import merge_adapter, open_adapter
from agentpeft.policies.models.policy_base import FINGERPRINT_KEY, compute_fingerprint
from agentpeft.policies.models.saved_model import find_saved
from agentpeft.policies.models.scoring import score_sequences
from agentpeft.policies.settings.config import Settings

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_MAX_DIFFERENCE = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""By how much a log-probability may differ: rounding of the merged weights."""


def base_settings(adapter: Path, base: str | None, dtype: str | None) -> Settings:
    """Returns settings whose model is an adapter's base: `base`, or the one that it names.

    A whole model is its own base. `dtype` None is what the base is stored in. Raises: SettingsError
    if a whole model is given another base.
    """
    if base is not None and is_whole_model(adapter):
        raise SettingsError(f"{adapter} is a whole model, not an adapter: leave out --base {base}")
    name = base or str(adapter)
    try:
        stored = read_model_config(Settings(model={"name": name})).dtype
    except (OSError, ValueError, KeyError):
        stored = None  # loading the base says what is wrong with it
    known = "bfloat16" if stored is torch.bfloat16 else "float32"
    return Settings(model={"name": name, "dtype": dtype or known})


def merge(
    settings: Settings, adapter: Path, output: Path, is_trusted: bool = False
) -> dict[str, object]:
    """Writes the merged model to `output`, checks it, and returns the report of `check_merged`.

    Raises: SettingsError (wrong base), CheckpointError where it is not the same policy.
    """
    base = load_base(settings)
    network = base.model
    if not is_whole_model(adapter):
        network = merge_adapter(open_adapter(base, adapter, is_trusted))
    if base.fingerprint is not None:
        network.config.update({FINGERPRINT_KEY: compute_fingerprint(network)})
    try:
        network.save_pretrained(output)
        base.tokenizer.save_pretrained(output)
    except SafetensorError as error:
        raise CheckpointError(f"{output} cannot be written: {error}") from None
    report = check_merged(settings, adapter, output, is_trusted)
    if not report["agrees"]:
        raise CheckpointError(f"{adapter} merged is not the same policy: {report}")
    return report


@contextmanager
def making_with_parents(path: Path) -> Iterator[Path]:
    """Makes `path` as `making` does, and the folders above it, which a failure removes.

    Raises: OSError, and what the block raises; a CheckpointError names `path` itself.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with making(path) as new:
            try:
                yield new
            except CheckpointError as error:
                raise CheckpointError(str(error).replace(f"{new.parent.name}/", "")) from None
    finally:
        for folder in () if path.exists() else missing:
            with suppress(OSError):  # another process has put something there
                folder.rmdir()


def check_merged(
    settings: Settings, adapter: Path, merged: Path, is_trusted: bool = False
) -> dict[str, object]:
    """Returns how a merged model compares with its base and adapter, and all sizes in MiB.

    `max_logprob_difference` is between the merged model and the unmerged pair, `adapter_effect`
    between the base and the pair; `unmerge_error` is how far the base is from the merged weights
    less the adapter's, relative to the largest of each. Raises: SettingsError, CheckpointError.
    """
    base = load_base(settings)
    _check_tokenizer(settings, merged, base.tokenizer)
    vocab_size = base.model.config.get_text_config().vocab_size
    num_tokens = min(vocab_size, len(base.tokenizer))
    sequences = list(np.random.default_rng(0).integers(0, num_tokens, (4, 64)))

    def score(model: nn.Module) -> Floats:
        return np.concatenate(score_sequences(model, vocab_size, sequences))

    alone = score(base.model)
    stored_mib = sum(w.numel() * w.element_size() for w in base.model.parameters()) / 2**20
    network, before = _read(merged, base.model.dtype), base.model.state_dict()
    if is_whole_model(adapter):  # as it was saved, so that rounding shows
        expected = load_base(settings.with_model(dtype="float32")).model
        paired, before = score(expected), expected.state_dict()
    else:
        pair = open_adapter(base, adapter, is_trusted)
        paired = score(pair)
        expected = merge_adapter(pair)
    error, num_changed = _unmerge_error(network, before, expected.state_dict())
    difference = float(np.abs(score(network) - paired).max())
    limits = torch.finfo(base.model.dtype).eps * 8, _MAX_DIFFERENCE[base.model.dtype]
    sizes = {"base": stored_mib, "adapter": _size_mib(adapter), "merged": _size_mib(merged)}
    return {
        "merged": shown(merged),
        "base": base.name,
        "adapter": shown(adapter),
        "agrees": error <= limits[0] and difference <= limits[1],
        "max_logprob_difference": difference,
        "adapter_effect": float(np.abs(paired - alone).max()),
        "unmerge_error": error,
        "num_changed_weights": num_changed,
        "size_mib": {name: round(size, 3) for name, size in sizes.items()},
    }


def _check_tokenizer(settings: Settings, merged: Path, own: PreTrainedTokenizerBase) -> None:
    """Raises: CheckpointError where a merged model's tokenizer, if any, is not the base's."""
    if not any((merged / name).is_file() for name in _TOKENIZER_FILES):
        return
    try:
        _, tokenizer = find_saved(settings.with_model(name=str(merged.resolve())).model)
    except SettingsError as error:
        raise CheckpointError(f"{merged} is no model: {error}") from None
    if tokenizer.get_vocab() != own.get_vocab():
        raise CheckpointError(f"{merged} has another tokenizer than the base")


def _read(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Returns a model as plain transformers reads it. Raises: CheckpointError."""
    try:
        network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is no model: {error}") from None
    network.train(False)
    return network


@torch.inference_mode()
def _unmerge_error(
    merged: PreTrainedModel,
    before: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
) -> tuple[float, int]:
    """Returns the largest relative error of the base's weights, and how many were changed.

    What the adapter adds is `expected`, as PEFT merges it, less `before`. Raises: CheckpointError
    where the models have other weights.
    """
    state, worst = merged.state_dict(), 0.0
    for name, weight in expected.items():
        written = state.pop(name, None)
        if written is None or written.shape != weight.shape:
            raise CheckpointError(f"the merged model's {name} is not the base's")
        error = (written.float() - weight.float()).abs().max()
        worst = max(worst, float(error / written.abs().max().clamp_min(1e-12)))
    if state:
        raise CheckpointError(f"the merged model has a weight of its own: {min(state)}")
    return worst, sum(not torch.equal(before[name], expected[name]) for name in before)


def _size_mib(path: Path) -> float:
    """Returns the size of a folder's files in MiB."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**20
