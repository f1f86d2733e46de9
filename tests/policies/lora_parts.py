"""A small base with its tokenizer, and what a model says of fixed tokens: for tests of adapters."""

import torch

from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import TinySettings

SMALL = TinySettings(hidden_size=32, num_layers=2)
IDS = torch.arange(4, 16)[None]


def make_base(seed=0, adapter_path=None, dtype=torch.float32):
    base = build_tiny(SMALL, ["some text 12"], seed)
    return PolicyBase(base.model.to(dtype=dtype), base.tokenizer, f"base-{seed}", adapter_path)


@torch.no_grad()
def logits(model):
    return model(IDS).logits
