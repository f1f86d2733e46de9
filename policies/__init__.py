"""AgentPEFT's training service: LoRA policies taught by reinforcement learning, on Ray."""

import os

# Read when torch is first imported. Runners, learner and driver share the cores: threads that spin
# while they wait, as long as they do by default, made training on two cores ten times slower, and
# threads that sleep at once a quarter. A short spin costs a sixth where two runs compute at once.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# Read when Ray starts on this machine. Its own 15 lets threads that work on one operation together
# wait three times as long for each other, also on idle cores. Of 5 or less no such thing is seen.
os.environ.setdefault("RAY_worker_niceness", "5")
# Actors have variables of their own, so a worker that Ray starts ahead would only wait.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
