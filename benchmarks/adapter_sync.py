"""How long does it take until a vLLM engine serves a new adapter, proven?

    python benchmarks/adapter_sync.py
    python benchmarks/adapter_sync.py --models tiny --ranks 8 --repeats 50

One JSON line for each way of serving, model and rank: median and 95th percentile of `--repeats`
calls of `load_adapter`, each with other weights, on one runner. A call writes the adapter's files;
the worker reads, checks, hashes and loads them, and drops what it kept for the last one. The
receipt is compared with the hash of what was sent. "tiny" is the built-in model's shape (1.9
million weights), "0.5b" Qwen2.5-0.5B's, both with random weights in float32 on the CPU.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.vllm.settings import VllmSettings
from agentpeft.policies.engines.vllm.start import start_engine
from agentpeft.policies.messages import AdapterVersion
from agentpeft.policies.models.tiny import make_tiny_config
from agentpeft.policies.settings.config import TinySettings

_SMALL = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
CONFIGS = {"tiny": make_tiny_config(TinySettings()), "0.5b": Qwen2Config(**_SMALL)}
Shapes = dict[str, tuple[int, int]]


def save_model(name: str, folder: Path) -> Shapes:
    """Saves a model of random weights, and returns the shapes of its linear layers."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32)
    model.save_pretrained(folder)
    linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    return {n: (m.out_features, m.in_features) for n, m in linear.items() if n != "lm_head"}


def make_adapter(number: int, rank: int, shapes: Shapes) -> AdapterVersion:
    """Returns other weights for each number."""
    rng, weights = np.random.default_rng(number), {}
    for name, (rows, columns) in shapes.items():
        for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            value = 0.01 * rng.standard_normal(shape, np.float32)
            weights[f"base_model.model.{name}.lora_{part}.weight"] = value
    return make_version(number, "benchmark", weights, 2.0)


def measure(engine: Engine, shapes: Shapes, rank: int, repeats: int) -> list[float]:
    """Returns seconds of each delivery but the first. Raises: RuntimeError on a wrong receipt."""
    seconds = []
    for number in range(repeats + 1):
        adapter = make_adapter(number, rank, shapes)
        start_s = time.perf_counter()
        ack = engine.load_adapter(adapter)
        seconds.append(time.perf_counter() - start_s)
        if (ack.version, ack.sha256) != (number, adapter.sha256):
            raise RuntimeError(f"the engine answers {ack}, sent was version {number}")
    return seconds[1:]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
    parser.add_argument("--serving", nargs="+", default=["native", "fused"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args(argv)
    for name in args.models:
        with TemporaryDirectory() as folder:
            shapes = save_model(name, Path(folder))
            for serving, rank in itertools.product(args.serving, args.ranks):
                own = VllmSettings(serving, "float32", 256, 8, rank)
                with closing(start_engine(Path(folder), [0], own)) as engine:
                    seconds = measure(engine, shapes, rank, args.repeats)
                milliseconds = 1e3 * np.array(seconds)
                line = {"model": name, "serving": serving, "rank": rank}
                line |= {"median_ms": round(float(np.median(milliseconds)), 1)}
                line |= {"p95_ms": round(float(np.percentile(milliseconds, 95)), 1)}
                print(json.dumps(line | {"repeats": args.repeats}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
