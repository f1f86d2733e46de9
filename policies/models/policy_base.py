"""`PolicyBase`: a causal language model with its tokenizer, before an adapter is attached.

Where several models of a process stand on one frozen base (a learner, its teacher, the engine
beside it), `place` gives them one copy of its weights.
"""

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import torch
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


class _FrozenWeights(dict[str, torch.Tensor]):
    """A base's weights by their names; gone with the last of the models that have them."""


_PLACED: WeakValueDictionary[Hashable, _FrozenWeights] = WeakValueDictionary()


def place(model: PreTrainedModel, device: torch.device, shared_from: Path | None) -> None:
    """Moves a model to its device; nobody may write into the weights of one that is shared.

    Of equal folders, `shared_from`, a process has one copy of the weights for each type and device.
    """
    if shared_from is None:
        model.to(device)  # type: ignore[arg-type]
        return
    key = read_file_states(shared_from), model.dtype, device
    frozen = _PLACED.get(key)
    if frozen is not None:
        for name, parameter in model.named_parameters():
            parameter.data = frozen[name]
    model.to(device)  # type: ignore[arg-type]
    if frozen is None:
        weights = ((name, parameter.data) for name, parameter in model.named_parameters())
        frozen = _PLACED[key] = _FrozenWeights(weights)
    model._frozen_weights = frozen  # type: ignore[assignment]


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


def read_file_states(folder: Path) -> tuple[tuple[str, int], ...]:
    """Returns a model's files, and when each was written."""
    files = [folder / "config.json", *folder.glob("*.safetensors"), *folder.glob("*.bin")]
    return tuple((str(path.resolve()), path.stat().st_mtime_ns) for path in sorted(files))
