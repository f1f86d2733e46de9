import json
import math
import re
from hashlib import sha256

import gymnasium
import pytest
import ray
from small_model import ONE_PROCESS
from word_env import WordEnv

from agentpeft.envs import EnvFault
from agentpeft.launch.reporting.run_data import read_sessions
from agentpeft.policies.checkpointing.checkpoints import list_checkpoints
from agentpeft.policies.checkpointing.reading import latest_checkpoint
from agentpeft.policies.errors import CheckpointError, TrainingError
from agentpeft.policies.rollout import groups
from agentpeft.policies.workers.learner_group import LearnerActor
from agentpeft.policies.workers.runner_group import EnvRunnerActor

TINY = (
    *ONE_PROCESS,
    "lora.rank=2",
    "training.num_groups=2",
    "training.group_size=3",
    "training.algorithm=reinforce",
    "training.lr=1e-2",
    "evaluation.num_tasks=3",
    "deterministic=true",
)
FILES = ("eval", "tokens", "train")
SPREAD = "environment.kwargs.reward={length_cost=0.1}"
"""Rewards that differ though a random model is never right."""


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def adapter_hash(checkpoint):
    return sha256((checkpoint / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(build):
    whole = build("whole", SPREAD)
    rows = [without_times(whole.train()) for _ in range(4)]
    first = build("cut", SPREAD)
    for _ in range(2):
        first.train()
    saved = first.save_to_path()
    first.train()
    first.stop()
    second = build("cut", SPREAD)
    second.restore_from_path(saved)
    assert [without_times(second.train()) for _ in range(2)] == rows[2:]
    assert adapter_hash(second.save_to_path()) == adapter_hash(whole.save_to_path())
    sessions = [run.run_dir / "sessions" / "train.jsonl" for run in (whole, second)]
    assert sessions[0].read_text() == sessions[1].read_text()


def test_a_resumed_run_has_all_episodes_of_training_and_evaluation_once(build):
    whole, first = build("whole", SPREAD), build("cut", SPREAD)
    for algorithm in (whole, first):
        for _ in range(2):
            algorithm.train()
            algorithm.evaluate()
    saved = first.save_to_path()
    for algorithm in (whole, first):
        for _ in range(2):
            algorithm.train()
            algorithm.evaluate()
    first.stop()  # the two iterations after the checkpoint are lost
    second = build("cut", SPREAD)
    second.restore_from_path(saved)
    for name in FILES:
        rows = list(read_sessions(second.run_dir, name))
        assert {row["iteration"] for row in rows} == ({1, 2} if name == "eval" else {0, 1})
    for _ in range(2):
        second.train()
        second.evaluate()
    for name in FILES:
        rows = [list(read_sessions(each.run_dir, name)) for each in (whole, second)]
        assert rows[0] == rows[1] and {row["iteration"] for row in rows[0]} >= {2, 3}


def test_an_iteration_reports_what_it_did_and_how_long(build):
    metrics = build("run", SPREAD).train()
    assert metrics["train/step"] == 1
    assert {"train/policy_loss", "train/accuracy", "train/avg_reward", "train/lr"} <= set(metrics)
    parts = [metrics[f"time/{part}_s"] for part in ("sample", "learn", "broadcast")]
    total = sum(parts) + metrics["time/orchestration_s"]
    assert metrics["time/total_s"] == pytest.approx(total)
    assert all(math.isfinite(value) for value in metrics.values())


def test_what_takes_long_says_how_far_it_has_come(build, monkeypatch, caplog):
    caplog.set_level("INFO")
    algorithm = build("run", "env_runners.max_concurrent_episodes=1")
    algorithm.train()
    algorithm.evaluate()
    assert "played" not in caplog.text  # neither takes a minute
    monkeypatch.setattr(groups, "_TELL_EVERY_S", 0)
    algorithm.train()
    algorithm.evaluate()
    told = re.findall(r"played (\d) of (\d) tasks in \d+ s", caplog.text)
    assert told == [("1", "2"), ("1", "3"), ("2", "3")]


def test_where_all_rewards_are_equal_nothing_is_learnt_and_there_is_no_loss(build):
    metrics = build("run").train()
    assert metrics["train/num_skipped_updates"] == 1
    assert math.isnan(metrics["train/policy_loss"])


def test_training_changes_the_adapter_and_episodes_are_written(build):
    algorithm = build("run", SPREAD)
    before = algorithm.save_to_path()
    algorithm.train()
    assert adapter_hash(algorithm.save_to_path()) != adapter_hash(before)
    lines = (algorithm.run_dir / "sessions" / "train.jsonl").read_text().splitlines()
    assert [json.loads(line)["group_id"] for line in lines] == [0, 0, 0, 1, 1, 1]
    lines = (algorithm.run_dir / "sessions" / "tokens.jsonl").read_text().splitlines()
    assert len(lines) == 4 and set(map(len, map(json.loads, lines))) == {10}


def test_evaluation_is_greedy_repeatable_and_apart_from_training(build):
    algorithm = build("run", "output.loggers=[]")
    results = [algorithm.evaluate() for _ in range(2)]
    assert results[0] == results[1]
    assert results[0]["num_episodes"] == 3
    assert not (algorithm.run_dir / "sessions").exists()


def test_only_the_newest_checkpoints_are_kept(build):
    algorithm = build("run", "output.num_checkpoints_kept=1")
    algorithm.save_to_path()
    algorithm.train()
    path = algorithm.save_to_path()
    assert list_checkpoints(path.parent) == [path] == [latest_checkpoint(path.parent)]
    stats = json.loads((path / "training_stats.json").read_text())
    assert (stats["iteration"], stats["num_episodes"]) == (1, 6)


def test_a_checkpoint_of_another_adapter_is_refused(build):
    path = build("run").save_to_path()
    with pytest.raises(CheckpointError, match="lora"):
        build("other", "lora.rank=4").restore_from_path(path)


class Failing(WordEnv):
    """Fails at all but the oracle's actions, or at those of one task in three.

    Else it pays for an action's length.
    """

    def __init__(self, is_always=True, **options):
        super().__init__(**options)
        self.is_always = is_always

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        is_oracle = action in self.oracle_actions(self.task)
        if not is_oracle and (self.is_always or int(self.task.word) % 3 == 0):
            raise EnvFault("the database is gone")
        return observation, float(len(action)), terminated, truncated, info


gymnasium.register("Tests/Failing-v0", Failing)
FAILING = ("environment.id=Tests/Failing-v0",)


def test_a_world_that_always_fails_ends_the_run_with_its_cause(build):
    algorithm = build("run", *FAILING)
    with pytest.raises(TrainingError, match="3 of 3 groups failed in their environment") as caught:
        algorithm.train()
    assert "at most 0.5 of them may" in str(caught.value)
    assert "turn 1: the database is gone" in str(caught.value)


@pytest.mark.parametrize("name", ["reinforce", "grpo", "rloo", "ppo"])
def test_episodes_that_fail_leave_no_trace_in_what_is_learnt(build, name):
    settings = [*FAILING, f"training.algorithm={name}", "training.num_groups=6"]
    metrics = build("run", *settings, "environment.kwargs.is_always=false").train()
    assert 0 < metrics["sample/num_dropped_groups"] < 6
    assert math.isfinite(metrics["train/baseline"]) and math.isfinite(metrics["train/avg_reward"])
    assert math.isfinite(metrics["train/policy_loss"]) and metrics["train/grad_norm"] > 0


def test_sft_learns_the_oracle(build):
    algorithm = build("run", "training.algorithm=sft", "training.group_size=", "lora.rank=8")
    losses = [algorithm.train()["train/policy_loss"] for _ in range(8)]
    assert losses[-1] < losses[0]


def test_one_process_starts_no_ray(build):
    build("run", SPREAD).train()
    assert not ray.is_initialized()


def test_stop_is_idempotent(build):
    algorithm = build("run")
    algorithm.stop()
    algorithm.stop()


class InterruptedRunner(EnvRunnerActor):
    """Raises KeyboardInterrupt, as Ctrl-C does, in the call of `INTERRUPTED`."""

    def collect(self, max_groups, until_room):
        collected = super().collect(max_groups, until_room)
        interrupt("collect")
        return collected

    def deliver(self, adapter, sequences):
        answer = super().deliver(adapter, sequences)
        interrupt("deliver")
        return answer


class InterruptedLearner(LearnerActor):
    def update(self):
        interrupt("before the update")
        metrics = super().update()
        interrupt("after the update")
        return metrics


INTERRUPTED = {"where": None}


def interrupt(where):
    if INTERRUPTED["where"] == where:
        INTERRUPTED["where"] = None
        raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["collect", "before the update", "after the update", "deliver"])
def test_an_iteration_that_is_given_up_anywhere_leaves_the_one_before_it(build, where):
    whole = build("whole", SPREAD)
    rows = [without_times(whole.train()) for _ in range(4)]
    classes = {"env_runner_class": InterruptedRunner, "learner_class": InterruptedLearner}
    first = build("cut", SPREAD, **classes)
    for _ in range(2):
        first.train()
    INTERRUPTED["where"] = where
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert first.give_up_iteration()
    saved = first.save_to_path()
    assert saved.name == "checkpoint-000002"
    first.stop()
    second = build("cut", SPREAD)
    second.restore_from_path(saved)
    assert [without_times(second.train()) for _ in range(2)] == rows[2:]
    assert adapter_hash(second.save_to_path()) == adapter_hash(whole.save_to_path())


def test_ctrl_c_in_an_evaluation_loses_nothing(build):
    algorithm = build("one", SPREAD, env_runner_class=InterruptedRunner)
    algorithm.train()
    INTERRUPTED["where"] = "collect"
    with pytest.raises(KeyboardInterrupt):
        algorithm.evaluate()
    assert algorithm.save_to_path().name == "checkpoint-000001"
