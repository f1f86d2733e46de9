"""Adapters as versions: named once, known by their content, acknowledged by whoever received them.

The hash guards against a wrong or damaged delivery, not against a hostile sender.
"""

import hashlib
from collections.abc import Mapping

import numpy as np

from agentpeft.policies.messages import AdapterAck, AdapterVersion, Bits, Floats

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of PEFT's format."""
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
"""How the names of its weights end."""


def compute_hash(weights: Mapping[str, Floats | Bits]) -> str:
    """Returns the SHA-256 over names, shapes, dtypes and bytes, independent of the order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name}|{array.shape}|{array.dtype.str}|".encode())
        digest.update(array.data)
    return digest.hexdigest()


def make_version(
    version: int, run_name: str, weights: Mapping[str, Floats | Bits], scaling: float
) -> AdapterVersion:
    """Returns `weights` under a name of run and version; `scaling` multiplies B A."""
    name = f"{run_name}-{version:06d}"
    return AdapterVersion(version, name, compute_hash(weights), scaling, dict(weights))


def ack_of(adapter: AdapterVersion) -> AdapterAck:
    """Returns the receipt of what arrived: the hash is computed anew, not copied."""
    return AdapterAck(adapter.version, compute_hash(adapter.weights))
