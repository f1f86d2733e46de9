"""Each setting acts: with another value a run does something else, or a test of its own shows what.

The runs are the training command's, in one process, with a model that learns in a second.
"""

import ast
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from small_model import SMALL

from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.train import main
from agentpeft.policies.settings.config import setting_names

ROOT = Path(__file__).parents[2]
CONFIG = """
deterministic = true
environment = {kwargs = {num_digits = 3, prompt = "compact", reward = {length_cost = 0.1}}}
lora = {rank = 2}
num_threads = 1
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 2, num_groups = 2, group_size = 3, lr = 1e-2}
evaluation = {num_tasks = 3}
output = {loggers = ["episodes"]}
"""
SFT = ("training.algorithm=sft", "training.group_size=")
WARM = ("warm_start.num_steps=10", "warm_start.batch_size=4")
STEPS = ("training.num_epochs=3", "training.lr=0.1")
CRITIC = ("training.algorithm=ppo", "training.critic=separate", *STEPS)
TURNS = (*CRITIC, "environment.kwargs.max_turns=3", "environment.kwargs.invalid_ends=false")
STAGES = ("curriculum.stages=[{num_digits=1},{num_digits=2},{num_digits=3}]",)
SOLVED = (
    *STAGES,
    "env_runners.engine=scripted",
    "curriculum.window=6",
    "training.num_iterations=3",
)
CHANGES: dict[str, tuple[str, ...]] = {
    "experiment": ("other",),
    "seed": ("1",),
    "environment.id": ("AgentPEFT/GSM8K-v0", "environment.kwargs={}"),
    "environment.kwargs": ("{num_digits=1}",),
    "curriculum.stages": ("[{num_digits=1},{num_digits=2}]",),
    "curriculum.promote_at": ("0.0", *STAGES, "curriculum.window=6"),
    "curriculum.window": ("7", *SOLVED),
    "curriculum.sampling": ("frontier",),
    "model.adapter": ("no/such/folder",),
    "model.dtype": ("bfloat16",),
    "model.use_chat_template": ("false",),
    "model.system_prompt": ("Answer.",),
    "tiny.hidden_size": ("64",),
    "tiny.num_layers": ("1",),
    "tiny.vocab_size": ("400",),
    "tiny.copies_words": ("true",),
    "lora.rank": ("4",),
    "lora.alpha": ("2.0",),
    "lora.target_modules": ('["q_proj"]',),
    "warm_start.num_steps": ("2",),
    "warm_start.decay": ("0.5", *WARM),
    "warm_start.batch_size": ("3", *WARM[:1]),
    "warm_start.lr": ("1e-2", *WARM),
    "warm_start.env_kwargs": ("{num_digits=1}", *WARM),
    "env_runners.engine": ("scripted", *SFT),
    "env_runners.max_new_tokens": ("2",),
    "env_runners.max_context_tokens": ("10",),
    "env_runners.temperature": ("0.5",),
    "training.algorithm": ("rloo",),
    "training.num_iterations": ("1",),
    "training.num_groups": ("1",),
    "training.group_size": ("2",),
    "training.lr": ("1e-3",),
    "training.lr_schedule": ("linear",),
    "training.num_warmup_iterations": ("2", "training.num_iterations=3"),
    "training.max_grad_norm": ("1e-3",),
    "training.num_epochs": ("2",),
    "training.num_minibatches": ("2",),
    "training.clip_range": ("1e-3", *STEPS),
    "training.kl_coeff": ("0.1", *STEPS),
    "training.entropy_coeff": ("0.1",),
    "training.importance_cap": ("0.5",),
    "training.critic": ("shared", "training.algorithm=ppo"),
    "training.gamma": ("0.5", *TURNS),
    "training.lambda_": ("0.5", *TURNS),
    "training.dynamic_sampling": ("2", "environment.kwargs.reward="),
    "learners.autocast": ("bfloat16",),
    "evaluation.interval": ("1",),
    "evaluation.num_tasks": ("2",),
    "evaluation.samples_per_task": ("2",),
    "evaluation.env_kwargs": ("{num_digits=1}",),
    "fault_tolerance.probe_interval": ("2",),
    "num_threads": ("3",),
    "output.dir": ("elsewhere",),
    "output.checkpoint_interval": ("1",),
    "output.num_checkpoints_kept": ("1", "output.checkpoint_interval=1"),
    "output.loggers": ("[]",),
}
"""For each setting another value, and what both runs are given besides."""
ELSEWHERE = {
    "deterministic": "policies/test_transformers_engine.py",
    "max_adapter_lag": "policies/test_killed_parts.py",
    "in_flight_updates": "policies/test_in_flight.py",
    "model.name": "policies/test_models.py",
    "model.chat_template_kwargs": "policies/test_thoughts.py",
    "model.end_of_thought": "policies/test_thoughts.py",
    "model.tool_calls": "policies/test_tool_chat.py",
    "lora.orthogonal_to": "policies/test_orthogonality.py",
    "warm_start.target_success": "policies/test_pretrain.py",
    "warm_start.promote_at": "policies/test_pretrain.py",
    "env_runners.num_env_runners": "policies/test_actors.py",
    "num_cpus_per_process": "policies/test_actors.py",
    "env_runners.num_gpus_per_env_runner": "launch/test_doctor_packages.py",
    "env_runners.serving": "policies/test_served_effect.py",
    "env_runners.shared_engines": "apps/test_vllm_shared_runs.py",
    "env_runners.sleep_while_learning": "policies/test_sleeping_engines.py",
    "env_runners.kv_cache_gib": "policies/vllm_engine/test_vllm_settings.py",
    "env_runners.max_concurrent_episodes": "policies/test_env_runner.py",
    "env_runners.agent": "apps/test_gateway.py",
    "env_runners.episode_timeout_s": "policies/test_env_runner.py",
    "training.teacher": "policies/test_teacher.py",
    "training.shuffle_rewards": "policies/test_control.py",
    "learners.num_learners": "policies/test_several_learners.py",
    "learners.num_gpus_per_learner": "apps/test_sweep.py",
    "learners.shard_base": "policies/test_sharded_base.py",
    "learners.gradient_checkpointing": "launch/test_resources.py",
    "learners.max_tokens_per_micro_batch": "policies/test_learner.py",
    "fault_tolerance.placement_timeout_s": "policies/test_actors.py",
    "fault_tolerance.max_num_restarts": "policies/test_injected_faults.py",
    "fault_tolerance.env_runner_health_probe_timeout_s": "policies/test_killed_parts.py",
    "callbacks": "launch/test_callbacks.py",
    "training.chats": "launch/test_chat_rows.py",
}
"""What such a run does not show: the file of tests that does."""
ONLY_READ = {"fault_tolerance.env_runner_restore_timeout_s"}
"""A call that hangs for so long is in no test."""
ONLY_CHECKS = {path.name for path in (ROOT / "policies" / "settings").iterdir()}
"""Apart from their properties, each of which is read elsewhere."""


def _find_read() -> Iterator[str]:
    for path in (
        path for room in ("policies", "launch", "apps") for path in (ROOT / room).rglob("*.py")
    ):
        whole = ast.parse(path.read_text(encoding="utf-8"))
        for part in _properties(whole) if path.name in ONLY_CHECKS else [whole]:
            for node in ast.walk(part):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    yield node.attr


def _properties(whole: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(whole):
        if isinstance(node, ast.FunctionDef):
            names = {name.id for name in node.decorator_list if isinstance(name, ast.Name)}
            if names & {"property", "cached_property"}:
                yield node


READ = set(_find_read())


@pytest.mark.parametrize("name", setting_names())
def test_a_setting_is_read_outside_of_its_validation(name):
    assert name.rpartition(".")[2] in READ


def test_every_setting_has_a_test():
    assert sorted([*CHANGES, *ELSEWHERE, *ONLY_READ]) == sorted(setting_names())


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_a_run_does_not_show_has_a_test_of_its_own(name):
    text = (ROOT / "tests" / ELSEWHERE[name]).read_text(encoding="utf-8")
    assert name.rpartition(".")[2] in text


@cache
def trace_of(folder: Path, overrides: tuple[str, ...]) -> dict[str, object]:
    """Runs the command in a folder of its own; returns what it did, without seconds."""
    place = folder / sha256(repr(overrides).encode()).hexdigest()
    place.mkdir()
    errors = place.with_suffix(".errors")
    with pytest.MonkeyPatch.context() as patch, errors.open("w") as file, redirect_stderr(file):
        patch.chdir(place)
        Path("config.toml").write_text(CONFIG, encoding="utf-8")
        status = main(["config.toml", *SMALL, *overrides])
    if status:
        return {"error": errors.read_text().splitlines()[-1]}
    (run,) = [path.parent for path in place.rglob("metrics.jsonl")]
    rows = [
        {name: value for name, value in row.items() if not name.startswith("time/")}
        for row in read_metrics(run)
    ]
    files = {
        str(path.relative_to(place)).replace(run.name, "RUN").partition(".tfevents")[0]: path
        for path in place.rglob("*")
    }
    read = ("adapter_model.safetensors", "train.jsonl")
    contents = [path.read_bytes() for path in sorted(files.values()) if path.name in read]
    return {
        "metrics": rows,
        "files": set(files),
        "contents": contents,
        "threads": torch.get_num_threads(),
    }


@pytest.fixture(scope="module")
def folder(cache_folder, tmp_path_factory):
    return tmp_path_factory.mktemp("settings")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (number % 4 > 0))
        for number, name in enumerate(CHANGES)
    ],
)
def test_a_run_with_another_value_does_something_else(name, folder):
    value, *given = CHANGES[name]
    assert trace_of(folder, (*given, f"{name}={value}")) != trace_of(folder, tuple(given))


@pytest.mark.slow
def test_runs_with_the_same_values_do_the_same(folder):
    assert trace_of(folder, ("seed=0",)) == trace_of(folder, ())
