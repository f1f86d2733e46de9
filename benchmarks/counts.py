"""What an update costs on a GPU, counted on a CPU: bytes, tokens, positions.

    python benchmarks/counts.py
    python benchmarks/counts.py --only tokens --max-tokens 32768

One JSON line each: `count` (its name), `value`, `bound` (what is aimed at), `within`. Every count
is the same on every machine, but for the seconds.

    bytes_per_sampled_token  the most that an update holds at once, over its sampled tokens, with a
                             vocabulary of 151,936, bfloat16 weights, an entropy bonus
    tokens                   what the passes of 16 groups of 8 compute, padding included, over their
                             distinct tokens: six profiles of prompts and answers
    tokens_padded            the same in padded rows, as for models that cannot be packed, over all
                             tokens of all sequences
    positions                the most tokens of a micro-batch, over its budget
    keys                     the most keys that attention gathers of a micro-batch at a time, over
                             its budget: those that it keeps for the backward pass, of answers with
                             their prompt, and the most of answers that read their prompt's in place
    scored                   tokens that are scored before several steps, over those of the samples
                             with an advantage, where half of the groups have none
    delivery_bytes           an adapter of Qwen2.5-7B, rank 16, in bfloat16: what a runner receives
    delivery_cpu_s           seconds of the processor that a runner and its vLLM take for it: to
                             write it, read it, hash it, and find its effect in slots; vLLM's own
                             loading apart
"""

import argparse
import json
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.envs import Outcome
from agentpeft.policies.delivery.version import LORA_A, LORA_B, ack_of, make_version
from agentpeft.policies.engines.adapter_slots import slot_effect
from agentpeft.policies.engines.fusing import tensor_of
from agentpeft.policies.engines.vllm.weight_files import read_adapter, write_adapter
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.passes.micro_batches import MicroBatch, make_micro_batches
from agentpeft.policies.learning.passes.packed_attention import Packing
from agentpeft.policies.learning.samples import list_samples
from agentpeft.policies.messages import EpisodeGroup, Trajectory
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.models.scoring import use_float_head
from agentpeft.policies.settings.config import Settings

VOCABULARY = 151_936
_CPU = torch.device("cpu")
Count = tuple[str, float, float]
PROFILES = {
    "400 + 8 x 60": (400, 60, 0.0),
    "600 + 60 ± 50 %": (600, 60, 0.5),
    "700 + 500 ± 60 %": (700, 500, 0.6),
    "900 + 1,500 ± 80 %": (900, 1500, 0.8),
    "250 + 2,000 ± 80 %": (250, 2000, 0.8),
    "3,000 + 300 ± 60 %": (3000, 300, 0.6),
}
"""Tokens of the prompt, and of an answer, with the spread of these (uniform)."""


def make_groups(
    profile: tuple[int, int, float], num_groups: int = 16, returns: Sequence[float] = (0.0, 1.0)
) -> list[EpisodeGroup]:
    """Returns groups of eight random answers, whose rewards go through `returns`."""
    rng, (prompt_length, length, spread) = np.random.default_rng(0), profile
    groups = []
    for number in range(num_groups):
        prompt = rng.integers(0, 1000, prompt_length)
        episodes = []
        for index in range(8):
            size = int(length * (1 + spread * rng.uniform(-1, 1)))
            ids, logprobs = rng.integers(0, 1000, size), np.full(size, -1, np.float32)
            reward, mask = returns[index % len(returns)], np.ones(size, bool)
            ends, rewards = (size,), (reward,)
            episode = Trajectory(prompt, ids, mask, logprobs, ends, rewards, Outcome.SUCCESS)
            episodes.append(episode)
        groups.append(EpisodeGroup(number, f"task{number}", (), 0, tuple(episodes)))
    return groups


def make_model(vocabulary: int, width: int, num_heads: int) -> Qwen2ForCausalLM:
    """Returns one layer of random weights."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=num_heads,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def count_tokens(batches: Sequence[MicroBatch]) -> int:
    """Returns how many tokens go through the model."""
    return sum(batch.token_ids.numel() for batch in batches)


def most_bytes_held(compute: Callable[[], object]) -> int:
    """Returns the most bytes of tensors on the CPU that are held at once, of those made here."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        compute()
    results = profile.profiler.kineto_results
    events = (e for e in results.events() if e.name() == "[memory]")
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def count_bytes(max_tokens: int) -> Iterator[Count]:
    """Yields the bytes of an update at a vocabulary of today's models, a token."""
    settings = Settings.model_validate(
        {
            "training": {"algorithm": "grpo", "entropy_coeff": 0.01},
            "learners": {"max_tokens_per_micro_batch": max_tokens},
        }
    )
    model = make_model(VOCABULARY, width=896, num_heads=14).bfloat16()
    use_float_head(model)
    learner = Learner(settings, attach_lora(PolicyBase(model, None, "counts"), settings.lora))
    groups = make_groups((4, 64, 0.0), num_groups=2)
    learner.update(groups)  # the optimizer's state is there then
    held = most_bytes_held(lambda: learner.update(groups))
    num_tokens = sum(len(t.token_ids) for group in groups for t in group.trajectories)
    yield f"bytes_per_sampled_token, {num_tokens} tokens", held / num_tokens, 300_000


def count_padding(max_tokens: int) -> Iterator[Count]:
    """Yields what is computed over what is there, and the largest micro-batch."""
    for name, profile in PROFILES.items():
        groups = make_groups(profile)
        samples = list_samples(groups)
        plain = sum(len(m.trajectory.prompt_ids) + len(m.trajectory.token_ids) for m in samples)
        prompts = sum(len(group.trajectories[0].prompt_ids) for group in groups)
        answers = sum(len(sample.trajectory.token_ids) for sample in samples)
        batches, padded = (
            make_micro_batches(samples, max_tokens, is_packed=is_packed, device=_CPU)
            for is_packed in (True, False)
        )
        yield f"tokens, {name}", count_tokens(batches) / (prompts + answers), 1.1
        yield f"tokens_padded, {name}", count_tokens(padded) / plain, 1.1
        yield f"positions, {name}", max(b.token_ids.numel() for b in batches) / max_tokens, 1.0
        packings = [batch.packing for batch in batches if batch.packing is not None]
        yield f"keys, {name}", max(map(count_keys, packings)) / max_tokens, 1.0


def count_keys(packing: Packing) -> int:
    """Returns the keys that attention holds beside the row's own, at most."""
    cut = packing.cut(shares_prompts=True)
    for_a_moment = [block.places.numel() for group in cut.groups for block in group]
    return sum(block.keys.numel() for block in cut.blocks) + max(for_a_moment, default=0)


def count_scored(max_tokens: int) -> Iterator[Count]:
    """Yields the tokens that are scored before several steps, over those that can learn."""
    settings = Settings.model_validate({"training": {"algorithm": "grpo", "num_minibatches": 2}})
    model = make_model(1000, width=32, num_heads=2)
    policy = attach_lora(PolicyBase(model, None, "counts"), settings.lora)
    mixed, equal = make_groups((40, 20, 0.5), 8), make_groups((40, 20, 0.5), 8, returns=(1.0,))
    groups = [*mixed, *equal]
    seen: list[int] = []

    def note(*call: Any) -> None:
        if not torch.is_grad_enabled():
            seen.append(call[2]["input_ids"].numel())

    learner = Learner(settings, policy)
    policy.model.register_forward_pre_hook(note, with_kwargs=True)
    learner.update(groups)
    alone = make_micro_batches(list_samples(mixed), max_tokens, is_packed=True, device=_CPU)
    yield "scored", sum(seen) / count_tokens(alone), 0.5  # the first step of two needs none


def adapter_shapes() -> dict[str, tuple[int, ...]]:
    """Returns the shapes of an adapter of rank 16 on all linear layers of Qwen2.5-7B."""
    hidden, intermediate, keys = 3584, 18_944, 512
    outputs_and_inputs = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(28):
        for name, (num_outputs, num_inputs) in outputs_and_inputs.items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            shapes[module + LORA_A] = (16, num_inputs)
            shapes[module + LORA_B] = (num_outputs, 16)
    return shapes


def count_delivery(_: int) -> Iterator[Count]:
    """Yields what a delivery at the shape of a 7B model is to a runner."""
    rng = np.random.default_rng(0)
    weights = {
        name: torch.from_numpy(rng.standard_normal(shape, np.float32)).bfloat16()
        for name, shape in adapter_shapes().items()
    }
    bits = {name: weight.view(torch.uint16).numpy() for name, weight in weights.items()}
    message = pickle.dumps(make_version(1, "counts", bits, 2.0), protocol=5)
    yield "delivery_bytes", len(message), 85_000_000
    seconds = []
    for _repeat in range(3):
        start_s = time.process_time()
        with TemporaryDirectory() as folder:
            write_adapter(pickle.loads(message), Path(folder))
            adapter = read_adapter(Path(folder))
        held = {name: tensor_of(weight) for name, weight in adapter.weights.items()}
        share = slot_effect(held, adapter).share
        if (share, ack_of(adapter).sha256) != (1.0, adapter.sha256):
            raise RuntimeError("the adapter arrived damaged")
        seconds.append(time.process_time() - start_s)
    yield "delivery_cpu_s", min(seconds), 0.45


COUNTS: dict[str, Callable[[int], Iterator[Count]]] = {
    "bytes": count_bytes,
    "tokens": count_padding,
    "scored": count_scored,
    "delivery": count_delivery,
}


def main() -> None:
    """Prints the counts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=COUNTS, help="one kind of counts (all)")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of a micro-batch (8192)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind, count in COUNTS.items():
        if options.only not in {None, kind}:
            continue
        for name, value, bound in count(options.max_tokens):
            row = {"count": name, "value": round(value, 3), "bound": bound}
            print(json.dumps({**row, "within": value <= bound}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
