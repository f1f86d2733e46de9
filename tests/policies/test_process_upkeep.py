"""Who has computed, and leaves the rest to another thread, has no worker threads any more."""

import subprocess
import sys

import pytest

COUNT = """
import os
import time
import torch
from agentpeft.policies.process_upkeep import release_threads

torch.set_num_threads(3)
def count():
    return len(os.listdir("/proc/self/task"))
def compute():
    torch.ones(10**6).exp_()
def expect(number):
    deadline = time.monotonic() + 20
    while count() != number:  # one that has ended is counted for a moment
        assert time.monotonic() < deadline, (count(), number)
        time.sleep(0.01)
"""
RELEASED = """
before = count()
compute()
expect(before + 2)
for _ in range(3):
    release_threads()
    expect(before)
compute()
expect(before + 2)
"""
OF_ANOTHER = """
import threading
compute()
with_pool = count()
def release():
    compute()
    release_threads()
    expect(with_pool + 1)
    done.append(True)
done = []
thread = threading.Thread(target=release)
thread.start()
thread.join()
assert done
expect(with_pool)
"""
OF_AN_ENGINE = """
import asyncio
from contextlib import closing
import numpy as np
from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
from agentpeft.policies.messages import GenerationRequest
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import TinySettings

def play():
    request = GenerationRequest("a", np.arange(4, 40), (0,), 1.0, 8)
    engine.update_sessions(opened=["a"])
    asyncio.run(engine.generate(request))
    engine.update_sessions(closed=["a"])

model = build_tiny(TinySettings(), ["text"]).model
release_threads()
time.sleep(0.5)
before = count()
compute()
expect(before + 2)
with closing(TransformersEngine(model, (), EngineSettings(needs_adapter=False))) as engine:
    expect(before + 1)
    for _ in range(2):
        play()
        asyncio.run(engine.score([np.arange(4, 40)] * 20))
        expect(before + 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [RELEASED, OF_ANOTHER, OF_AN_ENGINE])
def test_worker_threads_end_when_they_are_given_back(script):
    words = [sys.executable, "-c", COUNT + script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
