"""Base models and the LoRA adapters on them."""
