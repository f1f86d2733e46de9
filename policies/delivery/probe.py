"""What proves that a runner serves the adapter that was sent.

A hash tells what arrived, not what is served. So learner and engine say how likely a fixed set of
token sequences is: they must agree, and once the adapter changes something, the engine must be
where the adapter is, not where the base is. It proves nothing of prompts of other kinds.

In bfloat16 a small step moves these log-probabilities far less than rounding does (1e-4 against
4e-3, at a learning rate of 1e-5), so the engine also says how much of the adapter's change the
weights that it serves hold: that is exact, however small the step.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Floats, GenerationRequest, Ids
from agentpeft.policies.models.scoring import score_sequences
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:
    from agentpeft.policies.models.lora.attach_lora import Policy

NUM_CONTINUED = 4
"""How many greedy tokens an engine adds to each sequence."""
_MAX_SEQUENCE_TOKENS = 32
_EXACT_LIMIT, _BFLOAT16_LIMIT, _BFLOAT16_SHARE = 1e-3, 0.05, 0.01
"""How far learner and engine may be apart, where settings say nothing: in nats, a token's mean.

In bfloat16 it may be a hundredth of the log-probabilities themselves, of which its last digit is
0.4 %: a small model that has only seen one kind of text gives others -12 a token.
"""
_SURE = 8.0
"""How many times an effect on all tokens must be rounding's, as a norm, to be told from its half.

Rounding is mostly independent of it, so it adds up like noise. In bfloat16 it may be as large as
the limit, in float32 it is below a tenth of it.
"""
MIN_CANARY = 0.5
MIN_SERVED_EFFECT = 0.8
"""Share of an adapter's change that served weights must hold: rounding may lose the rest."""
TEXTS = (
    "What is 17 + 25? Show your working, then give the answer on a line of its own.\n42",
    "Action: Operation\n```sql\nSELECT name, SUM(price) FROM orders WHERE id > 3 GROUP BY name;```",
    "[('Anna', 12.5), ('Ben', 7)]\nAction: Answer\nFinal Answer: [('Anna', 12.5)]",
    "Act: bash\n```bash\nfind /var/log -name '*.log' -mtime -7 | wc -l\n```\nThe output is: 14",
    "A train leaves at 9:40 and arrives at 13:05. How many minutes does the journey take?",
    "The quick brown fox jumps over the lazy dog, and then it runs back to the woods.",
)
"""Prompts and actions of the suite's kinds, and prose."""


@dataclass(frozen=True)
class Probe:
    """What the learner says of the sequences: (N,), all their tokens but the first in a row.

    `base_logprobs` are the same of the base before training. `limit` is how far an engine may be
    from it.
    """

    sequences: tuple[Ids, ...]
    logprobs: Floats
    base_logprobs: Floats
    limit: float


@dataclass(frozen=True)
class Proof:
    """What an engine says of the same sequences: (N,).

    `sampling_difference` is the mean |difference| between the log-probabilities with which it
    continued them and those that it then gives to the same tokens. `served_effect`: the engine's.
    """

    logprobs: Floats
    sampling_difference: float
    served_effect: float


def make_probe(policy: "Policy", settings: Settings) -> Probe:
    """Returns what the learner's policy says of `TEXTS`, cut to fit the contexts of both sides."""
    # Imported here: runners use this module too, and need neither of these
    from agentpeft.policies.models.load import choose_dtype, uses_autocast

    model, config = policy.model.train(False), policy.base.model.config.get_text_config()
    room = settings.env_runners.limit_context(config.max_position_embeddings) - NUM_CONTINUED
    num_tokens = max(min(room, _MAX_SEQUENCE_TOKENS), 2)
    encoded = (policy.base.tokenizer(text)["input_ids"] for text in TEXTS)
    sequences = tuple(np.array(ids[:num_tokens]) for ids in encoded)
    gpus = settings.env_runners.num_gpus_per_env_runner, settings.learners.num_gpus_per_learner
    devices = [torch.device("cuda" if num_gpus > 0 else "cpu") for num_gpus in gpus]
    is_bfloat16 = torch.bfloat16 in [choose_dtype(settings.model, device) for device in devices]
    # CPUs serve float32 exactly, so there it is compared, though updates may compute in bfloat16
    is_exact = not is_bfloat16 and all(device.type == "cpu" for device in devices)
    is_autocast = not is_exact and uses_autocast(settings, model, model.device)

    def score() -> Floats:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=is_autocast):
            return np.concatenate(score_sequences(model, config.vocab_size, sequences))

    logprobs = score()
    if policy.probed_base is None:  # it stays as it is, so it is asked once
        with policy.base_alone():
            policy.probed_base = score()
    limit = choose_limit(logprobs, is_autocast or is_bfloat16)
    return Probe(sequences, logprobs, policy.probed_base, limit)


def choose_limit(logprobs: Floats, in_bfloat16: bool) -> float:
    """Returns how far an engine may be from log-probabilities (N,), by the type of its weights.

    Example:
        >>> choose_limit(np.full(9, -2.0), True), choose_limit(np.full(9, -12.0), True)
        (0.05, 0.12)
    """
    if not in_bfloat16:
        return _EXACT_LIMIT
    return max(_BFLOAT16_LIMIT, _BFLOAT16_SHARE * float(np.abs(logprobs).mean()))


def can_be_told(effect: Floats, limit: float) -> bool:
    """Returns whether an effect (N,) is told from half of it, where engines differ by a limit."""
    rounding = limit if limit > _EXACT_LIMIT else limit / 10
    return float(np.linalg.norm(effect)) > _SURE * rounding


def compute_share(shown: Floats, effect: Floats) -> float:
    """Returns how much of an effect (N,) is shown (N,): 1 all of it, 0 nothing."""
    return float(shown @ effect / (effect @ effect))


async def prove(engine: Engine, sequences: Sequence[Ids], timeout_s: float) -> Proof:
    """Returns what an engine serves, by scoring and by sampling. Raises: EngineError."""
    requests = [
        GenerationRequest(f"probe-{index:04d}", ids, (index,), 0.0, NUM_CONTINUED)
        for index, ids in enumerate(sequences)
    ]
    names = [request.session for request in requests]
    try:
        async with asyncio.timeout(timeout_s):
            engine.update_sessions(opened=names)
            try:
                continued = await asyncio.gather(*map(engine.generate, requests))
            finally:
                engine.update_sessions(closed=names)
            whole = [
                np.concatenate([ids, completion.token_ids])
                for ids, completion in zip(sequences, continued, strict=True)
            ]
            scores = await engine.score(whole)
    except TimeoutError:
        raise EngineError(f"the engine gave no proof within {timeout_s:g} s") from None
    parts = [np.split(s, [len(ids) - 1]) for s, ids in zip(scores, sequences, strict=True)]
    given, again = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    sampled = np.concatenate([completion.logprobs for completion in continued])
    return Proof(given, _mean_difference(again, sampled), engine.served_effect)


def compute_delivery_metrics(probe: Probe, proof: Proof) -> dict[str, float]:
    """Returns how far learner and engine are apart, and what the adapter changes in each.

    `canary` is the share of the adapter's effect that the engine shows: 1 serves the adapter, 0
    the base. It is left out where the effect is too small to tell; `served_effect` is where the
    adapter changes nothing.

    Example:
        >>> base, adapter = np.zeros(2, np.float32), np.float32([1, -1])
        >>> probe, proof = Probe((), adapter, base, 1e-3), Proof(base, 0.0, math.nan)
        >>> metrics = compute_delivery_metrics(probe, proof)
        >>> metrics["probe_mean"], metrics["engine_effect"], metrics["canary"]
        (1.0, 0.0, 0.0)
    """
    metrics = {
        "probe_mean": _mean_difference(probe.logprobs, proof.logprobs),
        "probe_max": float(np.abs(probe.logprobs - proof.logprobs).max()),
        "sampling_mean": proof.sampling_difference,
    }
    if math.isfinite(proof.served_effect):
        metrics["served_effect"] = proof.served_effect
    effect = probe.logprobs - probe.base_logprobs
    shown = proof.logprobs - probe.base_logprobs
    metrics["learner_effect"] = float(np.abs(effect).mean())
    metrics["engine_effect"] = float(np.abs(shown).mean())
    if can_be_told(effect, probe.limit):
        metrics["canary"] = compute_share(shown, effect)
    return metrics


def find_problem(metrics: Mapping[str, float], probe: Probe) -> str | None:
    """Returns what `compute_delivery_metrics` tells against a delivery, if anything."""
    for name, meaning in _MEANINGS.items():
        if not metrics[name] <= probe.limit:
            return f"{name} is {metrics[name]:.2g} (limit {probe.limit:g}): {meaning}"
    effect = metrics.get("served_effect", math.inf)
    if not effect >= MIN_SERVED_EFFECT:
        limit = f"limit {MIN_SERVED_EFFECT:g}"
        return f"served_effect is {effect:.2f} ({limit}): rounding takes the rest away"
    if metrics.get("canary", 1.0) < MIN_CANARY:
        return f"canary is {metrics['canary']:.2f}: the engine answers as the base does"
    return None


_MEANINGS = {
    "probe_mean": "learner and engine differ in the log-probabilities of fixed tokens",
    "sampling_mean": "the engine samples from other weights, keys or values than it scores with",
}


def _mean_difference(one: Floats, other: Floats) -> float:
    return float(np.abs(one - other).mean()) if len(one) else 0.0
