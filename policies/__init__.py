"""AgentPEFT's training service: LoRA policies taught by reinforcement learning, on Ray."""

import os

# Read when torch is first imported. Runners, learner and driver share the cores: threads that spin
# while they wait, as long as they do by default, made training on two cores ten times slower. A
# short spin takes a tenth off an iteration where processes compute by turns, and costs a fifth
# where two compute at once.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
