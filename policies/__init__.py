"""AgentPEFT's training service: LoRA policies taught by reinforcement learning, on Ray."""
