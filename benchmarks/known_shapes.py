"""Which known model fits which card, by the dry run's estimate: memory, and seconds of an update.

    python benchmarks/known_shapes.py
    python benchmarks/known_shapes.py 1.5b 7b --markdown

Nothing is downloaded, loaded or run: the shapes are those of the models' published configs. One
JSON line each: `learner_gib` with a rank of 16 and micro-batches of 8,192 tokens, gradient
checkpointing from 1.5b on; `engine_gib` without keys and values; `kib_per_token` of these; how many
episodes of 4,096 tokens a card of 24 and of 80 GB then holds at once beside the learner (0: it does
not fit), with both in bfloat16, and with the learner's copy in 4 bits; seconds of an update of 16
groups of eight (700 + 500 tokens) on an H100, from its operations and the share of the card's peak
that was measured at three of these shapes (`results/gpu.jsonl`). Estimates: memory within a factor
of 2.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gpu_work import DENSE_BFLOAT16_TFLOPS, Shape, count_work, shape_groups
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from agentpeft.launch.costs.resources import estimate_memory
from agentpeft.policies.settings.config import Settings

CONTEXT, MAX_TOKENS, RANK = 4096, 8192, 16
CARDS_GB = (24, 80)
_ENGINE_GIB = 2.0
"""What vLLM takes besides weights and cache: its context, graphs, and activations of a prompt."""
_LEARNER_GIB = 1.0
_USABLE = 0.95 * 1e9 / 2**30
_MEASURED = ((896, 0.065), (3584, 0.262), (5120, 0.284))
"""Widths, and the share of the peak that an update had there: between them it is interpolated."""


def _qwen2(hidden: int, inner: int, layers: int, heads: int, kv: int, tied: bool) -> Qwen2Config:
    return Qwen2Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        vocab_size=151_936 if hidden < 3584 else 152_064,
        max_position_embeddings=32_768,
        tie_word_embeddings=tied,
    )


def _qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool) -> Qwen3Config:
    return Qwen3Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151_936,
        max_position_embeddings=40_960,
        tie_word_embeddings=tied,
    )


CONFIGS: dict[str, tuple[str, Callable[[], PreTrainedConfig]]] = {
    "0.5b": ("Qwen2.5 0.5B", partial(_qwen2, 896, 4864, 24, 14, 2, True)),
    "0.6b": ("Qwen3 0.6B", partial(_qwen3, 1024, 3072, 28, 16, True)),
    "1.5b": ("Qwen2.5 1.5B", partial(_qwen2, 1536, 8960, 28, 12, 2, True)),
    "3b": ("Qwen2.5 3B", partial(_qwen2, 2048, 11_008, 36, 16, 2, True)),
    "4b": ("Qwen3 4B", partial(_qwen3, 2560, 9728, 36, 32, True)),
    "7b": ("Qwen2.5 7B", partial(_qwen2, 3584, 18_944, 28, 28, 4, False)),
    "8b": (
        "Llama 3.1 8B",
        partial(
            LlamaConfig,
            hidden_size=4096,
            intermediate_size=14_336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128_256,
            max_position_embeddings=131_072,
        ),
    ),
    "14b": ("Qwen2.5 14B", partial(_qwen2, 5120, 13_824, 48, 40, 8, False)),
    "32b": ("Qwen3 32B", partial(_qwen3, 5120, 25_600, 64, 64, False)),
    "30b-a3b": (
        "Qwen3 30B-A3B",
        partial(
            Qwen3MoeConfig,
            hidden_size=2048,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            vocab_size=151_936,
            max_position_embeddings=40_960,
        ),
    ),
}


def describe(name: str) -> dict[str, Any]:
    """Returns a shape's line."""
    title, make = CONFIGS[name]
    config = make()
    is_checkpointed = name not in ("0.5b", "0.6b")
    mib = estimate(config, "bfloat16", is_checkpointed)
    quarter = estimate(config, "nf4", is_checkpointed)
    per_token = mib["kv_cache"] / CONTEXT
    engine = (mib["env_runner"] - mib["kv_cache"]) / 1024 + _ENGINE_GIB
    line: dict[str, Any] = {
        "shape": name,
        "model": title,
        "is_checkpointed": is_checkpointed,
        "learner_gib": round(mib["learner"] / 1024 + _LEARNER_GIB, 1),
        "learner_nf4_gib": round(quarter["learner"] / 1024 + _LEARNER_GIB, 1),
        "activations_kb_per_token": round(mib["activations"] * 2**20 / MAX_TOKENS / 1000),
        "engine_gib": round(engine, 1),
        "kib_per_token": round(1024 * per_token),
    }
    for card in CARDS_GB:
        for key, suffix in (("learner_gib", ""), ("learner_nf4_gib", "_nf4")):
            left = card * _USABLE - engine - line[key]
            count = int(max(left, 0.0) * 1024 / (per_token * CONTEXT))
            line[f"episodes_{card}gb{suffix}"] = count
    line["update_s_h100"] = estimate_update_s(config)
    return line


def estimate(config: PreTrainedConfig, dtype: str, is_checkpointed: bool) -> dict[str, float]:
    """Returns the dry run's MiB for one episode at a time, with half of a card for each side."""
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        settings = Settings.model_validate(
            {
                "model": {"name": folder, "dtype": dtype},
                "lora": {"rank": RANK},
                "env_runners": {
                    "engine": "vllm",
                    "num_gpus_per_env_runner": 0.5,
                    "max_context_tokens": CONTEXT,
                    "max_concurrent_episodes": 1,
                },
                "learners": {
                    "num_gpus_per_learner": 0.5,
                    "gradient_checkpointing": is_checkpointed,
                    "max_tokens_per_micro_batch": MAX_TOKENS,
                },
            }
        )
        return estimate_memory(settings)


def estimate_update_s(config: PreTrainedConfig) -> float | None:
    """Returns seconds of an update on an H100; None of a mixture, of which none was measured."""
    if isinstance(config, Qwen3MoeConfig):
        return None
    values: dict[str, Any] = config.to_dict()
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    shape = Shape(
        hidden,
        values["intermediate_size"],
        values["num_hidden_layers"],
        heads,
        values["num_key_value_heads"],
        values.get("head_dim") or hidden // heads,
        values["vocab_size"],
        bool(values["tie_word_embeddings"]),
        has_qk_norm=False,
    )
    work = count_work(shape, shape.num_layers, shape_groups(shape))
    peak = 1e12 * DENSE_BFLOAT16_TFLOPS["H100"]
    widths, shares = zip(*_MEASURED, strict=True)
    return round(work.operations / peak / float(np.interp(hidden, widths, shares)), 1)


def main() -> None:
    """Prints the lines, or the table of the documentation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"{', '.join(CONFIGS)} (all)")
    parser.add_argument("--markdown", action="store_true", help="a table in place of JSON")
    options = parser.parse_args()
    if unknown := set(options.shapes) - CONFIGS.keys():
        parser.error(f"there is no shape {sorted(unknown)[0]!r}: {', '.join(CONFIGS)}")
    lines = (describe(name) for name in options.shapes or CONFIGS)
    if not options.markdown:
        for line in lines:
            print(json.dumps(line), flush=True)
        return
    print("| shape | learner | learner, nf4 | engine | 24 GB | 24 GB, nf4 | 80 GB | an update |")
    print("|---|---|---|---|---|---|---|---|")
    for line in lines:
        seconds = line["update_s_h100"]
        cells = (
            line["model"] + (", checkpointing" if line["is_checkpointed"] else ""),
            f"{line['learner_gib']:g} GiB",
            f"{line['learner_nf4_gib']:g} GiB",
            f"{line['engine_gib']:g} GiB",
            *(line[f"episodes_{name}"] or "no" for name in ("24gb", "24gb_nf4", "80gb")),
            "not measured" if seconds is None else f"{seconds:g} s",
        )
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
