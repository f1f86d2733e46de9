"""Logits in float32, whatever else computes in bfloat16: `use_float_head`."""

import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from torch import Tensor, nn
from transformers import PreTrainedModel


class FloatHead(nn.Linear):
    """An output layer that computes in float32, whatever the type of its weights and of autocast.

    In bfloat16 a logit of 8 to 16 is rounded by up to 0.03, in learner and engine each in its own
    way. vLLM computes it so as well, with `head_dtype`.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        """Returns the logits (..., V) of states (..., H)."""
        if not input.numel():  # or the weights would be converted for nothing
            return input.new_zeros(*input.shape[:-1], self.out_features, dtype=torch.float32)
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return F.linear(input.float(), self.weight.float(), bias)


def use_float_head(model: PreTrainedModel) -> None:
    """Makes a plain output layer a `FloatHead`; over float32 weights autocast would round too."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if type(head) is nn.Linear:
        head.__class__ = FloatHead
