"""What a base with an adapter says of fixed tokens, and what it would say if served wrongly."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft.tuners.lora import Linear, LoraLayer
from transformers.utils.logging import disable_progress_bar

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.probe import TEXTS
from agentpeft.policies.engines.fusing import ServedEffect
from agentpeft.policies.messages import Floats, Ids
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import TRAINED
from agentpeft.policies.models.lora.open_adapters import open_adapter
from agentpeft.policies.models.scoring import score_sequences
from agentpeft.policies.settings.config import Settings

_MAX_SEQUENCE_TOKENS = 32


class References:
    """An adapter on its base, computed by transformers and PEFT in float32.

    `modules` are the kinds of layers that it changes (`q_proj`, `experts`, …), `scaling` is the
    factor of B A by its settings, and `rank` its rank (of the first layer, where they differ).
    """

    def __init__(self, adapter: Path, base: str | None = None) -> None:
        """Raises: SettingsError or CheckpointError if adapter or base cannot be loaded."""
        disable_progress_bar()  # type: ignore[no-untyped-call]
        loaded = load_base(Settings(model={"name": base or str(adapter)}))
        self._network = loaded.model.config.get_text_config()
        limit = min(_MAX_SEQUENCE_TOKENS, self._network.max_position_embeddings - 8)
        encoded = (loaded.tokenizer(text)["input_ids"] for text in TEXTS)
        self.sequences: tuple[Ids, ...] = tuple(np.array(ids[:limit]) for ids in encoded)
        self.model = open_adapter(loaded, adapter, is_trusted=base is not None)
        self.layers = {n: m for n, m in self.model.named_modules() if isinstance(m, LoraLayer)}
        if not self.layers:
            raise SettingsError(f"the adapter {adapter} has no LoRA layer")
        first = next(iter(self.layers.values()))
        self.scaling, self.rank = float(first.scaling[TRAINED]), int(first.r[TRAINED])
        self.modules = sorted({_kind(name) for name in self.layers})
        self.say = cache(self._say)

    def say_base(self) -> Floats:
        """Returns the base's log-probabilities (N,) of all tokens but the first in a row."""
        with self.model.disable_adapter():
            return self._score()

    def _say(self, factor: float = 1.0, without: frozenset[str] = frozenset()) -> Floats:
        """Returns the same with the adapter's change times `factor`, and without some modules."""
        before = {name: layer.scaling[TRAINED] for name, layer in self.layers.items()}
        for name, layer in self.layers.items():
            layer.scaling[TRAINED] *= 0.0 if _kind(name) in without else factor
        try:
            return self._score()
        finally:
            for name, layer in self.layers.items():
                layer.scaling[TRAINED] = before[name]

    def enlarge(self, factor: float) -> None:
        """Sets how much larger the adapter's change is from now on than its settings say."""
        for layer in self.layers.values():
            layer.set_scale(TRAINED, factor)
        self.say.cache_clear()

    def _score(self) -> Floats:
        return np.concatenate(score_sequences(self.model, self._network.vocab_size, self.sequences))

    @torch.no_grad()
    def kept_in_bfloat16(self) -> float | None:
        """Returns the share of the adapter's change that stays if it is merged into bfloat16.

        1 is all of it. It is summed over linear layers; None where they are not changed.
        """
        effect = ServedEffect()
        for layer in self.layers.values():
            if isinstance(layer, Linear) and TRAINED in layer.lora_A:
                change = layer.get_delta_weight(TRAINED).float()
                weight: Any = layer.get_base_layer().weight
                before = weight.bfloat16().float()
                after = (before + change).bfloat16().float()
                effect.add(after - before, change)
        return round(effect.share, 3) if effect.sent else None


def _kind(name: str) -> str:
    """Returns the kind of a layer: `model.layers.0.self_attn.q_proj` is a `q_proj`."""
    return [word for word in name.split(".") if not word.isdecimal() and word != "base_layer"][-1]
