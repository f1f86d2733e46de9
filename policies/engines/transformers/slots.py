"""The keys and values of many sequences at once, and how a model attends to them.

Each sequence has a row ("slot"). What several begin with, the prompt of a group's episodes, lies
once at a place of its own, so that a row holds only what comes after it. On a CPU one token of
each row attends by batched products: all rows of a prompt to its keys together, and each row to its
own. These take a half to seven tenths of the time of PyTorch's fused attention, which is made for
many queries, and where several query heads share keys and values these need not be copied for each.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.messages import Ids

COLUMN_STEP = 64
_ATTENTION = "agentpeft_slots"
_CHANGES = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Options of an attention that computes something else."""


class _Store:
    """Keys and values of shape (layers, 2, slots, heads, positions, head width)."""

    def __init__(self, model: PreTrainedModel, max_columns: int) -> None:
        config = model.config.get_text_config().to_dict()
        num_heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // num_heads
        heads = config.get("num_key_value_heads") or num_heads
        # Zeros: what was never written is masked, but 0 * NaN would not be 0. Old ones are finite
        shape = (config["num_hidden_layers"], 2, 0, heads, 0, width)
        # Apart, queries attend in float32: converting all keys in each step would take longer
        dtype = torch.float32 if attends_apart(model) else model.dtype
        self.states = self._empty = torch.zeros(shape, dtype=dtype, device=model.device)
        self._max_columns = max_columns

    def free(self) -> None:
        """Gives all memory back."""
        self.states = self._empty.clone()

    def begin(self, slots: Ids, positions: Ids) -> None:
        """Says where the next pass's tokens go: to positions (B, T) of slots (B,), -1 to none."""
        self._reserve(int(slots.max()) + 1, int(positions.max()) + 1)
        num_heads, num_columns = self.states.shape[3:5]
        heads = np.arange(num_heads)[:, None]
        targets = (slots[:, None, None] * num_heads + heads) * num_columns + positions[:, None]
        sources = np.flatnonzero(np.broadcast_to(positions[:, None] >= 0, targets.shape))
        self._targets = torch.from_numpy(targets.ravel()[sources]).to(self.states.device)
        self._sources = torch.from_numpy(sources).to(self.states.device)

    def write(self, layer_idx: int, states: Sequence[Tensor]) -> None:
        """Writes a layer's keys and values, (B, heads, T, width), to where `begin` said."""
        for store, new in zip(self.states[layer_idx], states, strict=True):
            tokens = new.flatten(0, 2)
            tokens = tokens if len(tokens) == len(self._sources) else tokens[self._sources]
            store.flatten(0, 2).index_copy_(0, self._targets, tokens.to(store.dtype))

    def move(self, targets: list[int], sources: list[int], num_columns: int) -> None:
        """Gives the target slots the first columns of the source slots."""
        if targets and num_columns:
            self._reserve(max(targets) + 1, num_columns)
            store, device = self.states[..., :num_columns, :], self.states.device
            moved = store.index_select(2, torch.tensor(sources, device=device))
            store.index_copy_(2, torch.tensor(targets, device=device), moved)

    def _reserve(self, num_slots: int, num_columns: int) -> None:
        """Makes room for so many slots and columns, in growing steps: each copies all of it."""
        old = self.states
        slots, heads, columns = old.shape[2:5]
        if num_slots <= slots and num_columns <= columns:
            return
        new_slots = num_slots + num_slots // 4 if num_slots > slots else slots
        if num_columns > columns:
            columns = max(num_columns, min(columns + columns // 2, self._max_columns))
        new_columns = -(-columns // COLUMN_STEP) * COLUMN_STEP
        self.states = old.new_zeros((*old.shape[:2], new_slots, heads, new_columns, old.shape[5]))
        self.states[:, :, :slots, :, : old.shape[4]] = old


class _Table:
    """Rows in the order of their prompts: a table of prompts and their rows, some cells empty."""

    def __init__(self, prompts: Ids, lengths: Ids, device: torch.device) -> None:
        rows = np.flatnonzero(lengths)
        rows = rows[np.argsort(prompts[rows], kind="stable")]
        places = prompts[rows]
        first = int(places[0])
        counts = np.bincount(places - first)
        before = np.cumsum(counts) - counts
        self.places = slice(first, first + len(counts))
        self.num_columns = int(lengths.max())
        self._shape = len(counts), int(counts.max())
        rank = np.arange(len(rows)) - before[places - first]
        cells = (places - first) * self._shape[1] + rank
        # So they lie where groups have just begun: nothing has to be moved then
        self._is_in_order = len(rows) == len(lengths) == counts.max() * len(counts)
        self._is_in_order &= bool((rows[1:] > rows[:-1]).all())
        self.row_places, self.rows, self._cells = (
            torch.from_numpy(numbers).to(device) for numbers in (places, rows, cells)
        )

    def put(self, states: Tensor) -> Tensor:
        """Returns states of all rows (B, heads, R, D) as (prompts, heads, rows of one * R, D)."""
        _, heads, num, width = states.shape
        table = states
        if not self._is_in_order:
            table = states.new_zeros((self._shape[0] * self._shape[1], heads, num, width))
            table.index_copy_(0, self._cells, states.index_select(0, self.rows))
        table = table.reshape(*self._shape, heads, num, width)
        return table.transpose(1, 2).reshape(self._shape[0], heads, -1, width)

    def take(self, table: Tensor) -> Tensor:
        """Returns the states of `rows`, in this order, from such a table."""
        num_prompts, num_rows = self._shape
        heads, width = table.shape[1], table.shape[3]
        states = table.view(num_prompts, heads, num_rows, -1, width).transpose(1, 2).flatten(0, 1)
        return states if self._is_in_order else states.index_select(0, self._cells)


Shared: TypeAlias = tuple[_Table, Tensor, Tensor]
"""Which rows share prompts; their keys and values, (prompts, heads, positions, width)."""


class SlotCache(Cache):
    """The keys and values of rows, and of the prompts that they share.

    `begin_prompts` or `begin` says where a forward pass's tokens go; the pass then writes and
    reads in `update`. The rows of one pass are neighbours, so that reading them copies nothing.

    A pass over one token of each row is split: a layer gets the rows' keys and values alone, and
    asks for those of the prompts (`shared`). This needs an attention that gets the cache, and what
    `update` returned as it was, which a layer shows in an earlier pass. Models that do more with
    keys and values before they attend are given all of them, copied together.
    """

    def __init__(self, model: PreTrainedModel, max_tokens: int) -> None:
        super().__init__(layers=[])
        self.rows, self.prompts = (_Store(model, max_tokens) for _ in range(2))
        self._device, self._dtype = model.device, model.dtype
        self._split_layers: set[int] = set()
        self._table: _Table | None = None
        self._given: tuple[Tensor, ...] = ()
        self._is_prompt = self._is_single = False

    def free(self) -> None:
        """Gives all memory back, while no rows nor prompts are kept."""
        self.rows.free()
        self.prompts.free()
        self._table, self._given = None, ()  # views of the memory, of the last pass
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def begin_prompts(self, places: Ids, positions: Ids) -> Tensor:
        """Prepares a pass over whole prompts, positions (B, T), padded with -1 on the right.

        Returns the causal mask to add to attention scores, (1, 1, T, T), 0 or -inf.
        """
        self._is_prompt, self._table = True, None
        self.prompts.begin(places, positions)
        length = positions.shape[1]
        hidden = torch.full((1, 1, length, length), -torch.inf, device=self._device)
        return hidden.triu_(1).to(self._dtype)

    def begin(self, first: int, positions: Ids, prompts: Ids, lengths: Ids) -> Tensor:
        """Prepares a pass over the rows from `first` on; positions (B, T), -1 for padding.

        `prompts` and `lengths`, (B,): places and lengths of the prompts that they share; length 0
        is none. Returns the mask to add to attention scores, (B, 1, T, columns), 0 or -inf: the
        columns of the longest shared prompt, then those of the longest row.
        """
        self._is_prompt = False
        columns = np.where(positions < 0, -1, positions - lengths[:, None])
        self._rows = slice(first, first + len(positions))
        self._width = int(columns.max()) + 1
        self.rows.begin(np.arange(first, self._rows.stop), columns)
        self._table = _Table(prompts, lengths, self._device) if lengths.any() else None
        self._is_single = positions.shape[1] == 1
        ends = torch.from_numpy(columns).to(self._device).clamp_(min=0)
        is_hidden = torch.arange(self._width, device=self._device) > ends[..., None]
        if self._table is not None:
            prompt_ends = torch.from_numpy(lengths).to(self._device)[:, None, None]
            beyond = torch.arange(self._table.num_columns, device=self._device) >= prompt_ends
            is_hidden = torch.cat([beyond.expand(-1, positions.shape[1], -1), is_hidden], -1)
        mask = torch.zeros(is_hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(is_hidden, -torch.inf)[:, None]

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Writes keys and values (B, heads, T, width); returns those that the layer is to get."""
        states = key_states, value_states
        if self._is_prompt:
            self.prompts.write(layer_idx, states)
            self._given = states
            return states
        self.rows.write(layer_idx, states)
        keys, values = self.rows.states[layer_idx, :, self._rows, :, : self._width]
        if self._is_single and layer_idx in self._split_layers:
            self._given = keys, values
        else:
            whole = self.whole(layer_idx, keys, values)
            self._given = whole[0].to(key_states.dtype), whole[1].to(value_states.dtype)
        return self._given

    def shared(self, layer_idx: int, keys: Tensor, values: Tensor) -> Shared | None:
        """Returns what the rows of a split pass share; None if they share nothing, or got it.

        Attention asks with the keys and values that it has got, in every pass.
        """
        is_split = self._is_single and layer_idx in self._split_layers
        if keys is self._given[0] and values is self._given[1]:
            self._split_layers.add(layer_idx)
        if self._table is None or not is_split:
            return None
        columns = slice(self._table.num_columns)
        states = self.prompts.states[layer_idx, :, self._table.places, :, columns]
        return self._table, states[0], states[1]

    def whole(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of rows, each with its prompt's before them."""
        if (table := self._table) is None:
            return keys, values
        before = keys.new_zeros((2, len(keys), keys.shape[1], table.num_columns, keys.shape[3]))
        states = self.prompts.states[layer_idx, :, :, :, : table.num_columns]
        before.index_copy_(1, table.rows, states.index_select(1, table.row_places))
        return torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)


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


def attends_apart(model: PreTrainedModel) -> bool:
    """Returns whether rows attend to what they share where it lies, without a copy for each."""
    config = model.config.get_text_config()
    num_heads = getattr(config, "num_attention_heads", 0)
    is_grouped = getattr(config, "num_key_value_heads", None) not in (None, num_heads)
    is_fast = model.dtype == torch.float32 or is_grouped
    return model.config._attn_implementation == _ATTENTION and is_fast


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Returns the results, (B, T, heads, D), of queries (B, heads, T, D), keys and values.

    The keys and values may be those of rows alone: see `SlotCache.shared`.
    """
    slots: SlotCache | None = options.pop("slots", None)
    layer_idx: Any = module.layer_idx
    shared = slots.shared(layer_idx, key, value) if slots is not None else None
    is_other = any(options.get(name) is not None for name in _CHANGES)
    is_slow = query.dtype != torch.float32 and query.shape[1] == key.shape[1]  # to be converted
    if query.shape[2] > 1 or attention_mask is None or is_other or is_slow:
        if slots is not None and shared is not None:
            key, value = slots.whole(layer_idx, key, value)
        key, value = key.to(query.dtype), value.to(query.dtype)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    num_rows, num_heads, _, width = query.shape
    queries = query.float().reshape(num_rows, key.shape[1], -1, width)  # that share keys together
    queries = queries * (options.get("scaling") or width**-0.5)
    if shared is None:
        weights = (queries @ key.float().transpose(2, 3)).add_(attention_mask).softmax(-1)
        results = weights @ value.float()
    else:
        results = _attend_shared(queries, key, value, attention_mask, shared)
    return results.to(query.dtype).view(num_rows, 1, num_heads, width), None


def _attend_shared(
    queries: Tensor, key: Tensor, value: Tensor, mask: Tensor, shared: Shared
) -> Tensor:
    """Returns the results of queries (B, heads, R, D) over prompts and the rows' own keys."""
    table, shared_keys, shared_values = shared
    start = table.num_columns
    scores = queries.new_zeros((*queries.shape[:3], mask.shape[3]))
    scores[..., start:] = queries @ key.transpose(2, 3)
    of_prompts = table.put(queries) @ shared_keys.transpose(2, 3)
    scores[..., :start].index_copy_(0, table.rows, table.take(of_prompts))
    weights = scores.add_(mask).softmax(-1)
    of_prompts = table.put(weights[..., :start]) @ shared_values
    results = weights[..., start:] @ value
    return results.index_add_(0, table.rows, table.take(of_prompts))


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


def run(  # noqa: PLR0913 (what a pass is made of)
    model: PreTrainedModel,
    cache: SlotCache,
    ids: Ids,
    positions: Ids,
    mask: Tensor,
    adapters: Sequence[str],
    *,
    has_logits: bool,
) -> Tensor:
    """Runs a pass that `cache` was prepared for; returns the logits (B, V) after the last column.

    Without `has_logits` they are (B, 0): the output layer, often a quarter of a small model's
    weights, is not run for a prompt whose keys and values alone are wanted.
    `ids` and `positions`: (B, T), padded with positions -1 on the right; the logits are of no use
    for rows that end in padding. `adapters` names each row's adapter of a PEFT model; "" (or none):
    the model as it is.
    """
    options: dict[str, Any] = {"adapter_names": adapters} if any(adapters) else {}
    if model.config._attn_implementation == _ATTENTION:
        options["slots"] = cache
    output = model(
        input_ids=torch.from_numpy(ids).to(model.device),
        attention_mask=mask,
        position_ids=torch.from_numpy(positions).to(model.device).clamp_(min=0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1 if has_logits else torch.empty(0, dtype=torch.long, device=model.device),
        **options,
    )
    logits: Tensor = output.logits.float()
    return logits.flatten(1)
