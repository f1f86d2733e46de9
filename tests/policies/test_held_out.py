"""Evaluation that is not held out is said at the start, and its seen tasks are counted."""

import logging
from hashlib import blake2b

import pytest
import word_env  # noqa: F401 (registers an environment)
from small_model import SMALL

from agentpeft.envs import Task
from agentpeft.envs.gsm8k.word_problems import WordProblems
from agentpeft.envs.tasks.task import content_hash
from agentpeft.policies.checkpointing.checkpoints import write_checkpoint
from agentpeft.policies.checkpointing.reading import read_checkpoint
from agentpeft.policies.checkpointing.run_checkpoints import SEEN_FILE
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.loop.evaluation import warn_unless_held_out
from agentpeft.policies.rollout.environments import EnvPool
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

TINY = (
    *SMALL,
    "env_runners.num_env_runners=0",
    "env_runners.max_new_tokens=4",
    "env_runners.engine=scripted",
    "training.num_groups=7",
    "training.group_size=2",
    "training.algorithm=reinforce",
    "evaluation.num_tasks=40",
    "deterministic=true",
    "environment.kwargs={num_digits=1, prompt='compact'}",
)


def expected_counts(num_iterations, **held_out):
    """Returns by iteration how many of 40 evaluated problems have been among those trained on."""
    kwargs = {"num_digits": 1, "prompt": "compact"}
    train = EnvPool("AgentPEFT/Arithmetic-v0", kwargs, (0, 0))
    test = EnvPool("AgentPEFT/Arithmetic-v0", kwargs | held_out, (0, 1))
    evaluated = [test.task_at(position).instruction for position in range(40)]
    seen = [train.task_at(position).instruction for position in range(7 * num_iterations)]
    return [sum(task in seen[: 7 * i] for task in evaluated) for i in range(num_iterations + 1)]


def test_the_evaluated_tasks_that_were_trained_on_are_counted_over_a_resume(build):
    whole, counts = build("whole"), []
    for iteration in range(5):
        counts.append(whole.evaluate()["num_seen_tasks"])
        whole.train()
        if iteration == 1:
            saved = whole.save_to_path()
    counts.append(whole.evaluate()["num_seen_tasks"])
    assert counts == expected_counts(5) and 0 == counts[0] < counts[2] < counts[5]
    resumed = build("resumed")
    resumed.restore_from_path(saved)
    again = [resumed.evaluate()["num_seen_tasks"]]
    for _ in range(3):
        resumed.train()
        again.append(resumed.evaluate()["num_seen_tasks"])
    assert again == counts[2:]
    files = [read_checkpoint(run.save_to_path()) for run in (whole, resumed)]
    assert files[0][SEEN_FILE] == files[1][SEEN_FILE]


def test_splits_have_no_task_in_common_and_imitated_ones_count_too(build):
    halves = ("environment.kwargs.split=train", "evaluation.env_kwargs.split=test")
    counts = []
    for name, overrides in (("split", halves), ("whole", ())):
        run = build(
            name,
            "training.num_groups=64",
            "training.algorithm=sft",
            "training.group_size=",
            *overrides,
        )
        run.train()
        counts.append(run.evaluate()["num_seen_tasks"])
    assert counts[0] == 0 < counts[1]


def test_a_checkpoint_without_the_tasks_is_refused_whole(build, tmp_path):
    run = build("run")
    run.train()
    files = read_checkpoint(run.save_to_path())
    del files[SEEN_FILE]
    write_checkpoint(tmp_path / "older", files)
    with pytest.raises(CheckpointError, match=f"no {SEEN_FILE}"):
        run.restore_from_path(tmp_path / "older")
    assert run.iteration == 1


def test_equal_content_is_one_task_whatever_its_id():
    source = WordProblems()
    by_question = {}
    for seed in range(3000):
        task = source.get(f"twice:{seed}")
        by_question.setdefault(task.instruction, set()).add(content_hash(task))
    assert all(len(hashes) == 1 for hashes in by_question.values())
    assert len({value for hashes in by_question.values() for value in hashes}) == len(by_question)
    assert len(by_question) < 3000
    first, second = (Task(task_id=name, instruction="Go.", skills=(name,)) for name in "ab")
    other = Task(task_id="a", instruction="Stop.")
    assert content_hash(first) == content_hash(second) != content_hash(other)


def test_hashes_are_the_same_in_every_process():
    task = Task(task_id="a", instruction="Go.", skills=("walking",))
    content = b'["agentpeft.envs.tasks.taskset:Task", "Go.", {}]'
    assert content_hash(task) == int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def test_an_environment_without_tasks_is_known_by_its_seeds():
    pools = [EnvPool("Tests/Plain-v0", {}, (0, stream)) for stream in (0, 0, 1)]
    hashes = [[content_hash(pool.task_at(i)) for i in range(20)] for pool in pools]
    assert hashes[0] == hashes[1]
    assert not set(hashes[0]) & set(hashes[2])


SUMS = "{name = 'sums', id = 'AgentPEFT/Arithmetic-v0', kwargs = {split = 'train'}}"
WORDS = "{name = 'words', id = 'AgentPEFT/GSM8K-v0', kwargs = {data = 'data', split = 'train'}}"
MIXTURE = ("environment.id=AgentPEFT/Mixture-v0", f"environment.kwargs={{sources = [{SUMS}]}}")
SAME = (
    MIXTURE,
    (*MIXTURE, "evaluation.env_kwargs.prompt=full"),
    (),
    ("evaluation.env_kwargs.prompt=full", "evaluation.env_kwargs.max_turns=3"),
    ("environment.kwargs.split=train",),
    ("evaluation.env_kwargs.split=test",),
    ("environment.id=Tests/Plain-v0", "environment.kwargs="),
    ("evaluation.env_kwargs.num_digits=3", "curriculum.stages=[{num_digits=2}, {num_digits=3}]"),
)
APART = (
    (*MIXTURE, "evaluation.env_kwargs.split=test"),
    (
        "environment.id=AgentPEFT/Mixture-v0",
        f"environment.kwargs={{sources = [{SUMS}, {WORDS}], weights = [1, 0]}}",
        "evaluation.env_kwargs={weights = [0, 1]}",
    ),
    ("environment.kwargs.split=train", "evaluation.env_kwargs.split=test"),
    ("evaluation.env_kwargs.num_digits=3",),
    ("evaluation.num_tasks=0",),
    (
        "environment.id=AgentPEFT/GSM8K-v0",
        "environment.kwargs={data='data', split='train'}",
        "evaluation.env_kwargs.split=test",
    ),
)


@pytest.mark.parametrize(
    ("overrides", "num_lines"), [*((o, 1) for o in SAME), *((o, 0) for o in APART)]
)
def test_the_start_says_in_one_line_that_evaluation_is_not_held_out(caplog, overrides, num_lines):
    settings = Settings(**with_overrides({}, (*TINY, *overrides)))
    with caplog.at_level(logging.WARNING):
        warn_unless_held_out(settings)
    assert len(caplog.messages) == num_lines
    assert all("not held out" in line and "\n" not in line for line in caplog.messages)
