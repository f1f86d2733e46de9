"""The memory that a dry run tells of, against what a step and whole processes take."""

import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from agentpeft.envs import Outcome
from agentpeft.launch.costs import resources
from agentpeft.launch.costs.resources import estimate_memory
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.messages import EpisodeGroup, Trajectory
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.scoring import use_float_head
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import Settings, TinySettings

NUM_TOKENS, PROMPT = 512, 4
WIDE = {"vocab_size": 8000, "hidden_size": 32, "num_layers": 1}
DEEP = {"vocab_size": 300, "hidden_size": 64, "num_layers": 6}
BROAD = {"vocab_size": 2000, "hidden_size": 256, "num_layers": 2}
CASES = {
    "a large vocabulary": (WIDE, {}),
    "an entropy bonus": (WIDE, {"training": {"entropy_coeff": 0.01}}),
    "a temperature": (WIDE, {"env_runners": {"temperature": 0.5}}),
    "bfloat16": (WIDE, {"model": {"dtype": "bfloat16"}}),
    "layers": (DEEP, {}),
    "layers in bfloat16": (DEEP, {"model": {"dtype": "bfloat16"}}),
    "broad layers": (BROAD, {}),
    "layers made anew": (DEEP, {"learners": {"gradient_checkpointing": True}}),
}


def make_groups(vocab, length, num_groups=2, size=4):
    """Different answers of one length, which together fill a micro-batch."""
    rng, mask = np.random.default_rng(0), np.ones(length, bool)

    def play(reward):
        ids = rng.integers(0, vocab, length)
        logprobs = np.full(length, -1, np.float32)
        return Trajectory(prompt, ids, mask, logprobs, (length,), (reward,), Outcome.SUCCESS)

    groups = []
    for number in range(num_groups):
        prompt = rng.integers(0, vocab, PROMPT)
        episodes = tuple(play(float(index % 2)) for index in range(size))
        groups.append(EpisodeGroup(number, f"task{number}", (), 0, episodes))
    return groups


def peak_mib(compute):
    """The most that torch had allocated at any moment of a computation."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        compute()
    events = (e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]")
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))) / 2**20


@pytest.mark.parametrize("case", CASES)
def test_a_step_takes_about_the_memory_that_is_estimated(case):
    tiny, more = CASES[case]
    learners = {"max_tokens_per_micro_batch": NUM_TOKENS, **more.get("learners", {})}
    settings = Settings.model_validate(
        {"tiny": tiny, **more}
        | {"learners": {"autocast": more.get("model", {}).get("dtype", "off"), **learners}}
        | {"env_runners": {"max_new_tokens": 8, **more.get("env_runners", {})}}
    )
    base = build_tiny(settings.tiny, ["text"])
    if settings.model.dtype == "bfloat16":
        base.model.bfloat16()
    use_float_head(base.model)
    checkpointing = settings.learners.gradient_checkpointing
    policy = attach_lora(base, settings.lora, gradient_checkpointing=checkpointing)
    learner = Learner(settings, policy)
    for _ in range(2):  # gradients and the optimizer's state are there then, and copies of it
        learner.update(make_groups(300, 2))
    groups = make_groups(tiny["vocab_size"], NUM_TOKENS // 8 - PROMPT)
    measured = peak_mib(lambda: learner.update(groups))
    estimate = estimate_memory(settings)
    # The new copy to go back to counts, since torch sees no end of what was there before.
    assert measured == pytest.approx(estimate["activations"] + estimate["roll_back"], rel=0.3)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_base_that_a_learner_and_its_engine_share_counts_once(dtype, is_packed, monkeypatch):
    monkeypatch.setattr(resources, "multiplies_bfloat16", lambda: is_packed)
    num_copies = 1 if dtype == "float32" else is_packed
    kwargs = {"tiny": BROAD, "model": {"dtype": dtype}}
    apart, together = (
        estimate_memory(
            Settings.model_validate(
                kwargs | {"env_runners": {"num_env_runners": n, "max_new_tokens": 8}}
            )
        )
        for n in (1, 0)
    )
    base = apart["base_weights"]
    assert together["learner"] == apart["learner"]
    assert apart["env_runner"] - together["env_runner"] == pytest.approx(base)
    rest = together["adapter"] + 2 * together["kv_cache"]
    # In float32 what the adapter is fused into, in bfloat16 what is laid out for few rows
    assert together["env_runner"] == pytest.approx(num_copies * base + rest)


LARGE = {"max_position_embeddings": 1024, "num_key_value_heads": 2}
MODELS = {
    "tiny": None,
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            **LARGE,
            vocab_size=100_000,
            hidden_size=512,
            intermediate_size=1024,
            num_hidden_layers=2,
            num_attention_heads=8,
            tie_word_embeddings=True,
        )
    ).bfloat16(),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            **LARGE,
            vocab_size=32_000,
            hidden_size=640,
            intermediate_size=1728,
            num_hidden_layers=4,
            num_attention_heads=10,
        )
    ),
}
"""As large as they can be here, so that what a process takes besides is small."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["qwen2", *(pytest.param(name, marks=pytest.mark.long) for name in ("tiny", "llama"))]
)
def test_processes_take_about_the_memory_that_is_estimated(name, tmp_path):
    tiny = {"hidden_size": 512, "num_layers": 8}
    model = {"name": "tiny"}
    if MODELS[name] is not None:
        model = {"name": str(tmp_path / name), "dtype": "auto"}
        MODELS[name]().save_pretrained(model["name"])
        build_tiny(TinySettings(), ["text"]).tokenizer.save_pretrained(model["name"])
    settings = Settings.model_validate(
        {"model": model, "warm_start": {"num_steps": 0}}
        | ({"tiny": tiny} if name == "tiny" else {})
        | {"learners": {"max_tokens_per_micro_batch": 256}, "num_threads": 1}
        | {
            "env_runners": {
                "max_concurrent_episodes": 16,
                "max_context_tokens": 256,
                "max_new_tokens": 8,
            }
        }
    )
    (tmp_path / "settings.json").write_text(settings.model_dump_json())
    estimate = estimate_memory(settings)
    measured = {}
    for part in ("learner", "env_runner"):
        words = [sys.executable, str(Path(__file__).parent / "memory_use.py"), part, str(tmp_path)]
        measured[part] = float(subprocess.check_output(words, text=True).splitlines()[-1])
    for part, mib in measured.items():
        assert 0.5 < mib / estimate[part] < 2, (measured, estimate)
