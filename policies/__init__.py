"""AgentPEFT's training service: LoRA policies taught by reinforcement learning, on Ray."""

import os

# Read when torch is first imported. Runners, learner and driver share the cores: threads that spin
# while they wait made training on two cores ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
