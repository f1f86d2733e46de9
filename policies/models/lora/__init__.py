"""LoRA adapters: their layer, what is trained, and how saved ones are read, opened and merged.

The only door to `peft`.
"""
