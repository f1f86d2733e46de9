"""The key/value cache of many sequences at once, a row ("slot") each, and how it is attended to.

One token of each row attends by two batched products over the cache as it lies there. On a CPU
that takes half to seven tenths of the time of PyTorch's fused attention, which is made for many
queries, and where several query heads share keys and values these need not be copied for each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.messages import Ids

COLUMN_STEP = 64
_ATTENTION = "agentpeft_slots"
_CHANGES = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Options of an attention that computes something else."""


class SlotCache(Cache):
    """Keys and values of shape (layers, 2, slots, heads, positions, head width), grown on demand.

    `begin` says where a forward pass's tokens go; the pass then writes and reads in `update`.
    The rows of one pass are neighbours, so that reading them copies nothing.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(layers=[])
        config = model.config.get_text_config().to_dict()
        num_heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // num_heads
        heads = config.get("num_key_value_heads") or num_heads
        # Zeros: what was never written is masked, but 0 * NaN would not be 0. Old ones are finite
        shape = (config["num_hidden_layers"], 2, 0, heads, 0, width)
        self._store = torch.zeros(shape, dtype=model.dtype, device=model.device)

    @torch.inference_mode()  # most of the memory was taken in it
    def clear(self, slot: int) -> None:
        """Overwrites a slot's keys and values, which may not be finite."""
        self._store[:, :, slot] = 0

    def begin(self, first: int, positions: Ids) -> None:
        """Prepares a pass over the rows from `first` on; positions (B, T), -1 for padding."""
        self._rows = slice(first, first + len(positions))
        self._width = int(positions.max()) + 1
        self._reserve(self._rows.stop, self._width)
        num_heads, num_columns = self._store.shape[3:5]
        rows = np.arange(first, self._rows.stop)[:, None, None] * num_heads
        heads = np.arange(num_heads)[:, None]
        targets = (rows + heads) * num_columns + positions[:, None]
        kept = np.flatnonzero(np.broadcast_to(positions[:, None] >= 0, targets.shape))
        self._targets = torch.from_numpy(targets.ravel()[kept]).to(self._store.device)
        self._kept = torch.from_numpy(kept).to(self._store.device)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes keys and values (B, heads, T, width); returns those of whole rows."""
        layer = self._store[layer_idx]
        for store, states in zip(layer, (key_states, value_states), strict=True):
            tokens = states.flatten(0, 2)
            tokens = tokens if len(tokens) == len(self._kept) else tokens[self._kept]
            store.flatten(0, 2).index_copy_(0, self._targets, tokens)
        keys, values = layer[:, self._rows, :, : self._width]
        return keys, values

    def mask(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns what to add to attention scores: (B, 1, T, columns in use), 0 or -inf."""
        columns = torch.arange(self._width, device=positions.device)
        mask = self._store.new_zeros((*positions.shape, self._width))
        return mask.masked_fill_(columns > positions[..., None], -torch.inf)[:, None]

    def move(self, targets: list[int], sources: list[int], num_columns: int) -> None:
        """Gives the target slots the first columns of the source slots."""
        if targets and num_columns:
            self._reserve(max(targets) + 1, num_columns)
            store, device = self._store[..., :num_columns, :], self._store.device
            moved = store.index_select(2, torch.tensor(sources, device=device))
            store.index_copy_(2, torch.tensor(targets, device=device), moved)

    def _reserve(self, num_slots: int, num_columns: int) -> None:
        """Makes room for so many slots and columns, in steps; never shrinks."""
        old = self._store
        slots, heads, columns = old.shape[2:5]
        if num_slots <= slots and num_columns <= columns:
            return
        new_slots = max(slots, num_slots + (num_slots // 4 if num_slots > slots else 0))
        new_columns = max(columns, -(-num_columns // COLUMN_STEP) * COLUMN_STEP)
        self._store = old.new_zeros((*old.shape[:2], new_slots, heads, new_columns, old.shape[5]))
        self._store[:, :, :slots, :, :columns] = old


def prepare_attention(model: PreTrainedModel) -> None:
    """Has the model attend to slots in the way that is fastest here.

    Raises: SettingsError where the engine cannot keep the model's keys and values.
    """
    config = model.config.get_text_config().to_dict()
    is_full = set(config.get("layer_types") or ()) <= {"full_attention"}
    is_windowed = bool(config.get("sliding_window")) and config.get("use_sliding_window", True)
    is_other = model._is_stateful or any(map(config.get, ("kv_lora_rank", "layers_block_type")))
    if not is_full or is_windowed or is_other:
        raise SettingsError(
            "the transformers engine serves models with full attention in every layer (Llama, "
            f"Qwen2, Qwen3, ...), got {type(model).__name__} with windowed or recurrent ones"
        )
    if model.config._attn_implementation not in ("sdpa", "eager", _ATTENTION):
        raise SettingsError(
            "the transformers engine needs attn_implementation 'sdpa' or 'eager', got "
            f"{model.config._attn_implementation!r}"
        )
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(_ATTENTION)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Returns the results, (B, T, heads, D), of queries (B, heads, T, D), keys and values."""
    is_other = any(options.get(name) is not None for name in _CHANGES)
    is_slow = query.dtype != torch.float32 and query.shape[1] == key.shape[1]  # to be converted
    if query.shape[2] > 1 or attention_mask is None or is_other or is_slow:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    num_rows, num_heads, _, width = query.shape
    queries = query.float().reshape(num_rows, key.shape[1], -1, width)  # that share keys together
    weights = (queries @ key.float().transpose(2, 3)).mul_(scaling or width**-0.5)
    results = weights.add_(attention_mask).softmax(-1) @ value.float()
    return results.to(query.dtype).view(num_rows, 1, num_heads, width), None


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


def next_token_logits(
    model: PreTrainedModel,
    cache: SlotCache,
    first: int,
    ids: Ids,
    positions: Ids,
    adapters: Sequence[str] = (),
) -> torch.Tensor:
    """Runs tokens (B, T), padded on the left, through rows `first`...; returns logits (B, V).

    `adapters` names each row's adapter of a PEFT model; empty: the model as it is.
    """
    cache.begin(first, positions)
    places = torch.from_numpy(positions).to(model.device).clamp_(min=0)
    own = {"adapter_names": list(adapters)} if adapters else {}
    output = model(
        input_ids=torch.from_numpy(ids).to(model.device),
        attention_mask=cache.mask(places),
        position_ids=places,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
        **own,
    )
    logits: torch.Tensor = output.logits[:, -1].float()
    return logits
