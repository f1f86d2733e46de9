"""The key/value cache of many sequences at once: a row ("slot") each, columns are positions."""

from typing import Any

import numpy as np
import torch
from transformers import Cache, PretrainedConfig, PreTrainedModel

from agentpeft.envs.errors import SettingsError
from agentpeft.policies.samples import Ids

COLUMN_STEP = 64
"""By how many positions the cache grows at least; it grows by half of what it has."""


class SlotCache(Cache):
    """Keys and values of shape (layers, 2, slots, positions, heads, head width), grown on demand.

    `begin` says where a forward pass's tokens go; the pass then writes and reads in `update`.
    The rows of one pass are neighbours, so that reading them copies nothing.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[])
        self._num_layers = num_layers
        self._num_slots, self._num_columns = 0, 0
        self._store = torch.empty(0)
        self._layers: list[tuple[torch.Tensor, ...]] = []
        self._rows = slice(0, 0)
        self._width = 0
        self._targets = self._kept = torch.empty(0, dtype=torch.long)
        self._has_padding = False

    def begin(self, first: int, positions: Ids, device: torch.device) -> None:
        """Prepares a pass over the rows from `first` on; positions (B, T), -1 for padding."""
        num_rows = len(positions)
        self._rows = slice(first, first + num_rows)
        self._width = int(positions.max()) + 1
        self.reserve(first + num_rows, self._width)
        targets = positions + (np.arange(num_rows) + first)[:, None] * self._num_columns
        is_token = positions.ravel() >= 0
        self._has_padding = not is_token.all()
        if self._has_padding:
            self._kept = torch.from_numpy(np.flatnonzero(is_token)).to(device)
        self._targets = torch.from_numpy(targets.ravel()[is_token]).to(device)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes keys and values (B, heads, T, width); returns those of whole rows."""
        if not self._layers:
            self._allocate(key_states, value_states)
        keys, values, flat_keys, flat_values = self._layers[layer_idx]
        for flat, states in ((flat_keys, key_states), (flat_values, value_states)):
            tokens = states.transpose(1, 2).flatten(0, 1)
            flat.index_copy_(0, self._targets, tokens[self._kept] if self._has_padding else tokens)
        rows, width = self._rows, self._width
        return keys[rows, :, :width], values[rows, :, :width]

    def mask(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Returns what to add to attention scores: (B, 1, T, columns in use), 0 or -inf."""
        columns = torch.arange(self._width, device=positions.device)
        mask = torch.zeros((*positions.shape, self._width), dtype=dtype, device=positions.device)
        return mask.masked_fill_(columns > positions[..., None], -torch.inf)[:, None]

    def move(self, targets: list[int], sources: list[int], num_columns: int) -> None:
        """Gives the target slots the first columns of the source slots."""
        if not targets or not self._layers:
            return
        self.reserve(max(targets) + 1, num_columns)
        store = self._store[:, :, :, :num_columns]
        device = store.device
        moved = store.index_select(2, torch.tensor(sources, device=device))
        store.index_copy_(2, torch.tensor(targets, device=device), moved)

    def reserve(self, num_slots: int, num_columns: int) -> None:
        """Makes room for so many slots and columns, in steps; never shrinks."""
        slots, columns = self._num_slots, self._num_columns
        if num_slots > slots:
            slots = max(num_slots, slots + slots // 2)
        if num_columns > columns:
            columns = max(num_columns, columns + columns // 2)
            columns = -(-columns // COLUMN_STEP) * COLUMN_STEP
        if (slots, columns) == (self._num_slots, self._num_columns):
            return
        self._num_slots, self._num_columns = slots, columns
        if self._layers:
            old = self._store
            self._store = self._make_store(old.shape[4], old.shape[5], like=old)
            self._store[:, :, : old.shape[2], : old.shape[3]] = old
            self._split()

    def _allocate(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        if keys.shape != values.shape:
            raise SettingsError(
                f"the transformers engine needs keys and values of one shape, got "
                f"{tuple(keys.shape)} and {tuple(values.shape)}"
            )
        self._store = self._make_store(keys.shape[1], keys.shape[3], like=keys)
        self._split()

    def _make_store(self, num_heads: int, width: int, like: torch.Tensor) -> torch.Tensor:
        # Zeros: what was never written is masked, but 0 * NaN would not be 0.
        shape = (self._num_layers, 2, self._num_slots, self._num_columns, num_heads, width)
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def _split(self) -> None:
        self._layers = [
            (*(x.transpose(1, 2) for x in layer), *(x.flatten(0, 1) for x in layer))
            for layer in self._store
        ]


def check_attention(model: PreTrainedModel) -> None:
    """Raises: SettingsError where the model's layers see other than the whole context."""
    config = model.config.get_text_config().to_dict()
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    has_window = config.get("sliding_window") is not None and config.get("use_sliding_window", True)
    if kinds or has_window or config.get("layers_block_type") or model._is_stateful:
        raise SettingsError(
            f"the transformers engine serves models with full attention in every layer, got "
            f"{type(model).__name__} with {', '.join(sorted(kinds)) or 'windowed or no'} attention"
        )
    if model.config._attn_implementation not in ("sdpa", "eager"):
        raise SettingsError(
            "the transformers engine needs attn_implementation 'sdpa' or 'eager', got "
            f"{model.config._attn_implementation!r}"
        )


def num_layers(config: PretrainedConfig) -> int:
    """Returns how many layers have keys and values."""
    return int(config.get_text_config().num_hidden_layers)


def next_token_logits(
    model: PreTrainedModel, cache: SlotCache, first: int, ids: Ids, positions: Ids
) -> torch.Tensor:
    """Runs tokens (B, T), padded on the left, through rows `first`...; returns logits (B, V)."""
    device = model.device
    cache.begin(first, positions, device)
    places = torch.from_numpy(positions).to(device).clamp_(min=0)
    output = model(
        input_ids=torch.from_numpy(ids).to(device),
        attention_mask=cache.mask(places, model.dtype),
        position_ids=places,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: torch.Tensor = output.logits[:, -1].float()
    return logits
