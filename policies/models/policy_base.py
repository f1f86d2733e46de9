"""`PolicyBase`: a causal language model with its tokenizer, before an adapter is attached."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

FINGERPRINT_KEY = "agentpeft_fingerprint"
Progress = Callable[[int, float, float], None]
"""Is told (step, loss, share of episodes that are right) of a warm start."""


@dataclass(frozen=True)
class PolicyBase:
    """A model and its tokenizer.

    `name` is what an adapter notes as its base: a hub id or a folder. `adapter_path` is the
    trained adapter that training starts from; None is none.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    adapter_path: str | None = None

    @property
    def fingerprint(self) -> str | None:
        """The hash of a built-in model's weights when it was made; None for any other model."""
        value = self.model.config.to_dict().get(FINGERPRINT_KEY)
        return None if value is None else str(value)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a generation, by the model's own `generation_config`."""
        return stop_tokens_of(self.model.generation_config)


@dataclass(frozen=True)
class FrozenPolicy:
    """A model that is only asked; `model` is the base's, or that with an adapter."""

    base: PolicyBase
    model: nn.Module

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Returns nothing."""
        return []


def stop_tokens_of(config: GenerationConfig | None) -> tuple[int, ...]:
    """Returns the `eos_token_id`s of a generation config: one, several or none."""
    ids = None if config is None else config.eos_token_id
    return (ids,) if isinstance(ids, int) else tuple(ids or ())


def compute_fingerprint(model: torch.nn.Module) -> str:
    """Returns 16 hexadecimal digits over the names, shapes and float32 bytes of all weights."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(weight.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
