"""`LanguageModule`: a causal language model as an RLModule of RLlib's new stack (Ray 2.60).

It plays a `TokenEnv`, and computes every conversation anew for every token: for small models.
"""

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from transformers import AutoModelForCausalLM

from agentpeft.apps.drivers.token_env import NO_TOKEN


class LanguageModule(TorchRLModule, ValueFunctionAPI):
    """A causal language model as policy, `model_config["model"]`, and a value head on it."""

    def setup(self) -> None:
        """Loads the model as `lm`, for `save_pretrained` after training; values begin at 0."""
        settings: Any = self.model_config
        self.lm: Any = AutoModelForCausalLM.from_pretrained(settings["model"])
        self._value = torch.nn.Linear(self.lm.config.get_text_config().hidden_size, 1)
        torch.nn.init.zeros_(self._value.weight)

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, torch.Tensor]:
        embeddings = self._embed(batch)
        logits = self.lm.get_output_embeddings()(embeddings)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: embeddings}

    def compute_values(
        self, batch: dict[str, Any], embeddings: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the value of each conversation."""
        hidden = self._embed(batch) if embeddings is None else embeddings
        values: torch.Tensor = self._value(hidden).squeeze(-1)
        return values

    def _embed(self, batch: dict[str, Any]) -> torch.Tensor:
        """Returns the last token's hidden state; what fills up stands behind it, unseen."""
        ids = batch[Columns.OBS].long()
        hidden: torch.Tensor = self.lm.base_model(ids.clamp(min=0)).last_hidden_state
        last = (ids != NO_TOKEN).sum(-1) - 1
        return hidden[torch.arange(len(ids), device=ids.device), last]
