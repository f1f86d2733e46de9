"""A canary: an adapter of the same shape whose effect is large enough to be told from rounding."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from agentpeft.apps.probe.completions import ask
from agentpeft.policies.delivery.version import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from agentpeft.policies.errors import EngineError
from agentpeft.policies.models.lora.read_adapter import read_adapter

NAME = "agentpeft-canary"
_STEP = 0.02
_PLAIN = re.compile(r"\.lora_(embedding_)?[AB]\b")
FACTORS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""By how much its change is made larger, until each kind of modules can be told."""


def write_canary(adapter: Path, folder: Path, factor: float) -> None:
    """Writes an adapter with the settings and shapes of another, and random weights.

    The rows of A have length 1, entries of B are of `_STEP` times `factor`; other tensors stay.
    Raises: CheckpointError if the adapter cannot be read.
    """
    weights = read_adapter(adapter)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(adapter / ADAPTER_CONFIG, folder / ADAPTER_CONFIG)
    rng = np.random.default_rng(0)
    for name in filter(_PLAIN.search, weights):
        drawn = rng.standard_normal(weights[name].shape).astype(np.float32)
        length = np.linalg.norm(drawn, axis=-1, keepdims=True)
        weights[name] = drawn / length if "_A" in name else drawn * np.float32(_STEP * factor)
    (folder / ADAPTER_WEIGHTS).write_bytes(save(weights))


@contextmanager
def served_canary(url: str, folder: Path, timeout_s: float) -> Iterator[None]:
    """Has the server serve the canary as the model `NAME`. Raises: EngineError where it refuses."""
    body = {"lora_name": NAME, "lora_path": str(folder.resolve())}
    try:
        ask(f"{url}/load_lora_adapter", timeout_s, body)
        yield
    finally:
        with suppress(EngineError):  # a verdict stands; what loads for too long goes too
            ask(f"{url}/unload_lora_adapter", timeout_s, {"lora_name": NAME})
