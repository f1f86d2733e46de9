"""Overrides that make the built-in model small: what tests of whole runs share."""

SMALL = (
    "tiny.hidden_size=32",
    "tiny.num_layers=2",
    "tiny.num_heads=2",
    "tiny.intermediate_size=64",
    "tiny.vocab_size=300",
    "tiny.max_context_tokens=256",
)
