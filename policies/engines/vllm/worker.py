"""What vLLM's worker can do besides: `AdapterReceiver`, called by `collective_rpc` in its process.

vLLM mixes the class into its own worker class, by its name.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from mmap import MADV_DONTNEED, PAGESIZE
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from tqdm import tqdm

from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.engines.adapter_slots import slot_effect
from agentpeft.policies.engines.fusing import (
    ServedEffect,
    check_fits,
    merged_weight,
    target_names,
    tensor_of,
)
from agentpeft.policies.engines.vllm.weight_files import CheckpointFiles, read_adapter
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import AdapterVersion

tqdm.set_lock(RLock())  # its own is a file in shared memory, which SIGKILL would leave there
Answer = dict[str, str | int | float]
"""A receipt's fields with the `served_effect`, or an `error`, which vLLM would hand on as text."""


class AdapterReceiver:
    """Receives adapters, and fuses them into the weights that are served."""

    model_config: Any
    model_runner: Any
    reload_weights: Callable[..., None]
    device: torch.device
    _fused_names: frozenset[str] = frozenset()
    _changes_head: bool | None = None
    """Whether adapters change the output layer; None before the first."""

    def receive_adapter(self, folder: str, is_fused: bool) -> Answer:
        """Returns a receipt of what the folder holds once it is checked, and fused if asked to.

        The effect is of the weights; in slots they are of the base's type.
        """
        try:
            adapter = read_adapter(Path(folder))
            base = CheckpointFiles(Path(self.model_config.model), self.model_config.dtype, "cpu")
            check_fits(base.shapes(), adapter)
            if not is_fused:
                self._settle_head(adapter)
            effect = self._fuse(base, adapter) if is_fused else self._find_effect(adapter)
        except EngineError as error:
            return {"error": str(error)}
        return {**vars(ack_of(adapter)), "served_effect": effect.share}

    def free_cache(self) -> None:
        """Gives the memory of keys and values on a CPU back; it is zeros, and taken when written.

        vLLM itself ignores `sleep` there. Raises: OSError.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        storages = (cache.untyped_storage() for cache in self.model_runner.kv_caches)
        for start, size in {(storage.data_ptr(), storage.nbytes()) for storage in storages}:
            first, last = -(-start // PAGESIZE), (start + size) // PAGESIZE
            place, length = first * PAGESIZE, (last - first) * PAGESIZE
            if libc.madvise(place, length, MADV_DONTNEED):
                raise OSError(ctypes.get_errno(), "madvise of vLLM's cache")

    def _settle_head(self, adapter: AdapterVersion) -> None:
        """Takes LoRA off the output layer, unless the first adapter changes that layer.

        vLLM has it there for some models (Llama). Its kernel takes the rows of all logits for those
        of sampled tokens: a prompt's logits beside another request end vLLM on a CPU.
        Raises: EngineError where a later adapter changes the layer after all.
        """
        changes_head = any("lm_head" in name for name in adapter.weights)
        if self._changes_head is None:
            self._changes_head = changes_head
        elif changes_head and not self._changes_head:
            raise EngineError(f"{adapter.name} changes the output layer, and earlier ones did not")
        if self._changes_head:
            return
        model = self.model_runner.get_model()
        for name, module in list(model.named_modules()):
            if type(module).__name__ == "LogitsProcessorWithLoRA":
                model.set_submodule(name, module.base_layer)

    def _find_effect(self, adapter: AdapterVersion) -> ServedEffect:
        dtype = self.model_config.dtype
        return slot_effect({n: tensor_of(w).to(dtype) for n, w in adapter.weights.items()}, adapter)

    def _fuse(self, base: CheckpointFiles, adapter: AdapterVersion) -> ServedEffect:
        """Loads whole layers anew: what the last adapter changed, and what this one changes."""
        changed = frozenset(target_names(adapter))
        packed = self.model_runner.get_model().packed_modules_mapping
        names = _whole_layers(changed | self._fused_names, base, packed)
        # Whatever happens now, all of these may differ from the base
        self._fused_names |= changed
        effect = ServedEffect()
        self.reload_weights(weights_iterator=self._load(names, base, adapter, effect))
        self._repack_tied_head(names)
        self._fused_names = changed
        return effect

    def _repack_tied_head(self, loaded: Sequence[str]) -> None:
        """Has an output layer that is tied to a loaded embedding follow it.

        On CPUs vLLM computes logits from a packed copy of the weights, which it makes of each layer
        as it loads it. A tied output layer is not loaded: its copy would be of older weights.
        """
        model = self.model_runner.get_model()
        head: Any = getattr(model, "lm_head", None)
        weight = getattr(head, "weight", None)
        for name, module in model.named_modules():
            is_tied = module is not head and getattr(module, "weight", None) is weight
            if weight is not None and is_tied and f"{name}.weight" in loaded:
                head.quant_method.process_weights_after_loading(head)

    def _load(
        self,
        names: Iterable[str],
        base: CheckpointFiles,
        adapter: AdapterVersion,
        effect: ServedEffect,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        changed = set(target_names(adapter))
        for name in names:
            weight = base[name].to(self.device)
            if name in changed:
                weight = merged_weight(weight, name, adapter, effect)
            yield name, weight


def _whole_layers(
    names: Iterable[str], base: Iterable[str], packed: Mapping[str, list[str]]
) -> list[str]:
    """Returns `names` with all that shares a layer in vLLM: biases, and q, k and v together."""
    layers = set()
    for name in names:
        parent, _, leaf = name.rpartition(".")[0].rpartition(".")
        parts = next((group for group in packed.values() if leaf in group), [leaf])
        layers |= {f"{parent}.{part}".lstrip(".") for part in parts}
    return [name for name in base if name.rpartition(".")[0] in layers]
