"""What a plain run in one process does without is not imported."""

import json
import subprocess
import sys

RUN = """
import json, sys
from agentpeft.policies.settings.algorithm_config import AlgorithmConfig

config = (
    AlgorithmConfig()
    .environment("AgentPEFT/Arithmetic-v0", num_digits=1)
    .model("tiny")
    .tiny(hidden_size=32, num_layers=1)
    .env_runners(num_env_runners=0, max_new_tokens=4)
    .training(algorithm="rloo", num_groups=2, group_size=2)
    .evaluation(num_tasks=2)
)
with config.build_algo("run") as algorithm:
    algorithm.train()
    algorithm.evaluate()
    algorithm.save_to_path()
names = (name for name in sys.modules if name.startswith("agentpeft."))
print(json.dumps(sorted(name.removeprefix("agentpeft.") for name in names)))
"""
OPTIONS = (
    "apps",
    "launch",
    "envs.core.vector",
    "envs.tasks.difficulty",
    "envs.tasks.hub",
    "policies.engines.scripted",
    "policies.engines.vllm",
    "policies.learning.critic",
    "policies.learning.options.",
    "policies.learning.passes.sharded_base",
    "policies.learning.passes.varlen_attention",
    "policies.learning.several_learners",
    "policies.models.batch_maker",
    "policies.models.four_bits",
    "policies.models.lora.all_weights",
    "policies.models.lora.open_adapters",
    "policies.models.lora.read_adapter",
    "policies.models.saved_model",
    "policies.rollout.chat_rows",
    "policies.rollout.tool_chat",
    "policies.workers.brought_files",
    "policies.workers.ray_actors",
)
"""Modules of options that are off here, by how their names begin."""


def test_a_plain_run_imports_no_option_that_is_off(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "policies.learning.learner" in loaded
    assert not [name for name in loaded if name.startswith(OPTIONS)]
