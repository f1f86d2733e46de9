"""Saved adapters on their base: opened beside its weights, or merged into them."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from warnings import catch_warnings

import torch
from peft import (
    LoraConfig,
    PeftModel,
    PeftModelForCausalLM,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from torch import nn
from transformers import PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.lora.attach_lora import TRAINED, embeddings_of
from agentpeft.policies.models.lora.read_adapter import (
    ONLY_SHAPES,
    PLAIN_STARTS,
    check_base,
    find_unusual,
    read_adapter,
    read_config,
    shorten,
)
from agentpeft.policies.models.policy_base import PolicyBase


def open_adapter(base: PolicyBase, path: str | Path, is_trusted: bool = False) -> PeftModel:
    """Returns the base, changed in place, with a saved LoRA adapter beside its weights.

    Whatever PEFT's LoRA adds is part of it: DoRA, biases, `modules_to_save`, tokens. Raises:
    SettingsError if the adapter names another base (unless `is_trusted`: it may be the same under
    another name) or cannot be restored from its files, CheckpointError if it cannot be read, or its
    tensors are not exactly those of such an adapter.
    """
    model, _ = open_adapters(base, [Path(path)], is_trusted)
    return model


def open_adapters(
    base: PolicyBase, folders: Sequence[Path], is_trusted: bool = False
) -> tuple[PeftModel, tuple[str, ...]]:
    """Returns the base, changed in place, with several adapters, and their names within PEFT.

    The first is active; a pass may name another for each row (`adapter_names`). Raises: as
    `open_adapter`; SettingsError if one of several changes more than LoRA layers.
    """
    names = (TRAINED, *(f"other{number}" for number in range(1, len(folders))))
    configs = [read_config(folder) for folder in folders]
    for folder, config in zip(folders, configs, strict=True):
        check_base(base, folder, config, is_trusted)
        unusual = find_unusual(config, LoraConfig(), ONLY_SHAPES)
        if len(folders) > 1 and unusual:
            raise SettingsError(
                f"the adapter {folder} has {unusual}, which several adapters on one base cannot "
                "have: evaluate it alone, or merge it (agentpeft merge)"
            )
    model: PeftModel | None = None
    for name, folder, config in zip(names, folders, configs, strict=True):
        weights, config.inference_mode = read_adapter(folder), True
        if not _leaves_base(config, weights):
            for parameter in base.model.parameters():  # others of this process may have it, too
                parameter.data = parameter.data.clone()
        try:
            if model is None:
                model = PeftModelForCausalLM(base.model, config, name)
            else:
                model.add_adapter(name, config)
            _load_strictly(model, name, weights)
        except (ValueError, RuntimeError, LookupError, TypeError, ImportError, re.error) as error:
            raise CheckpointError(f"the adapter {folder} does not fit: {shorten(error)}") from None
    if model is None:
        raise ValueError("expected at least one adapter, got none")
    return model.eval(), names


def _load_strictly(model: PeftModel, name: str, weights: Mapping[str, Floats]) -> None:
    """Loads an adapter's weights; PEFT itself only warns of what is missing, or is none of its.

    Raises: CheckpointError, and PEFT's own errors.
    """
    tensors = {key: torch.from_numpy(weight) for key, weight in weights.items()}
    result: Any = set_peft_model_state_dict(model, tensors, adapter_name=name)
    if unknown := sorted(result.unexpected_keys):
        raise ValueError(f"{unknown[0]} is not in this model (and {len(unknown) - 1} more)")
    state = model.state_dict()
    loaded = {state[key].data_ptr() for key in state.keys() - set(result.missing_keys)}
    saved = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    if missing := sorted(key for key, value in saved.items() if value.data_ptr() not in loaded):
        raise ValueError(f"its files lack {missing[0]} (and {len(missing) - 1} more)")


def _leaves_base(config: LoraConfig, weights: Collection[str]) -> bool:
    """Returns whether PEFT loads an adapter without writing into the base's weights."""
    return config.init_lora_weights in PLAIN_STARTS and all(".lora_" in name for name in weights)


def merge_adapter(model: PeftModel) -> PreTrainedModel:
    """Returns the base, changed in place, with its adapter in the weights.

    Tensors of the base's state dict from before keep their values. Raises: CheckpointError on what
    PEFT cannot merge.
    """
    is_untied = _untie(cast(PreTrainedModel, model.get_base_model()))
    try:
        with catch_warnings(action="ignore", category=UserWarning):  # of shared embeddings
            merged: PreTrainedModel = model.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"PEFT cannot merge this adapter: {shorten(error)} (agentpeft evaluate plays it "
            "unmerged)"
        ) from None
    embeddings, head = embeddings_of(merged)
    if is_untied and torch.equal(embeddings.weight, head.weight):
        merged.config.tie_word_embeddings = True
        merged.tie_weights()
    return merged


def _untie(network: PreTrainedModel) -> bool:
    """Gives the output layer a copy of the embeddings' weights, if they share them and are adapted.

    An adapter of one of the two would otherwise be merged into both, one of both twice. Returns
    whether it did.
    """
    embeddings, head = embeddings_of(network)
    if isinstance(embeddings, nn.Embedding) and isinstance(head, nn.Linear):
        return False
    shared = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    linear = (m for m in network.modules() if isinstance(m, nn.Linear))
    heads = [layer for layer in linear if id(layer.weight) in shared]
    for layer in heads:
        layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
    return bool(heads)
