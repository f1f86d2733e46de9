"""Says how many MiB a learner, or an env runner's engine, takes at its peak.

`python memory_use.py learner|env_runner FOLDER`, in a process of its own: the settings are in
FOLDER/settings.json, and the learner leaves its adapter there for the engine. What Python and the
libraries take is left out.
"""

import asyncio
import pickle
import sys
from pathlib import Path

import numpy as np
import torch
from test_resources import make_groups

from agentpeft.policies.engines.transformers.engine import start_transformers
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.messages import GenerationRequest
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.rollout.chat import make_chat
from agentpeft.policies.settings.config import Settings

NUM_NEW = 8
"""Tokens that an episode samples; its context is full with them."""


def read_mib(name):
    """Returns VmRSS, or VmHWM: the most that it was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    return int(line.split()[1]) / 1024


def learn(settings, folder):
    """Takes two updates of whole micro-batches."""
    learners = settings.learners
    checkpointing = learners.gradient_checkpointing
    policy = attach_lora(load_base(settings), settings.lora, gradient_checkpointing=checkpointing)
    learner = Learner(settings, policy)
    length = learners.max_tokens_per_micro_batch // 8
    for _ in range(2):
        learner.update(make_groups(300, length - 4))
    (folder / "adapter.pickle").write_bytes(pickle.dumps(learner.adapter()))


def play(settings, folder):
    """Plays as many episodes at once as may be, each as long as may be, with an adapter."""
    limits, rng = settings.env_runners, np.random.default_rng(0)
    base = load_base(settings)
    engine = start_transformers(settings, base, make_chat(base, settings))
    engine.load_adapter(pickle.loads((folder / "adapter.pickle").read_bytes()))
    names = [f"s{index}" for index in range(limits.max_concurrent_episodes)]
    engine.update_sessions(opened=names)

    async def play_all():
        requests = (
            GenerationRequest(
                name,
                rng.integers(0, 300, limits.max_context_tokens - NUM_NEW),
                (index,),
                max_new_tokens=NUM_NEW,
            )
            for index, name in enumerate(names)
        )
        await asyncio.gather(*map(engine.generate, requests))

    asyncio.run(play_all())
    engine.close()


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    settings = Settings.model_validate_json((folder / "settings.json").read_text())
    torch.nn.Linear(8, 8)(torch.zeros(8, 8)).sum().backward()  # the libraries' own is there then
    before = read_mib("VmRSS")
    {"learner": learn, "env_runner": play}[sys.argv[1]](settings, folder)
    sys.stdout.write(f"{read_mib('VmHWM') - before}\n")
