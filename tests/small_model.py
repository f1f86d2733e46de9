"""Overrides that make the built-in model small: what tests of whole runs share."""

SMALL = (
    "tiny.hidden_size=32",
    "tiny.num_layers=2",
    "tiny.vocab_size=300",
)

ONE_PROCESS = (
    *SMALL,
    "env_runners.num_env_runners=0",
    "env_runners.max_new_tokens=4",
    "num_threads=1",
)

TWO_RUNNERS = (
    *SMALL,
    "lora.rank=2",
    "env_runners.num_env_runners=2",
    "num_threads=1",
    "env_runners.max_new_tokens=4",
    "training.num_groups=4",
    "training.group_size=3",
    "training.algorithm=reinforce",
    "training.lr=1e-2",
    "environment.kwargs.reward={length_cost=0.1}",
    "evaluation.num_tasks=0",
    "deterministic=true",
)
"""A short run whose rewards differ, so that it learns: equal runs have equal adapters."""
