"""A run's JSONL files: episodes are appended, and a run goes back to what a checkpoint knew."""

import json
import os
from shutil import rmtree

import pytest

from agentpeft.envs import Outcome
from agentpeft.policies.checkpointing.run_logs import append_episodes, measure_logs, seal_logs
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.loop.resuming import check_logs, cut_logs
from agentpeft.policies.messages import EpisodeRecord


def play(number):
    messages = (("user", "1+1="), ("assistant", "2 ü"))
    return EpisodeRecord(number, 0, "t", ("add",), 7, Outcome.SUCCESS, 1.0, 1, 3, messages)


def write(run_dir, iterations, name="train"):
    """Appends two episodes an iteration."""
    for iteration in iterations:
        append_episodes(run_dir / "sessions" / f"{name}.jsonl", iteration, [play(iteration)] * 2)


def read(run_dir, name="train"):
    path = run_dir / "sessions" / f"{name}.jsonl"
    return [json.loads(line)["iteration"] for line in path.read_text().splitlines()]


def test_episodes_are_appended_as_lines(tmp_path):
    path = tmp_path / "sessions" / "train.jsonl"
    messages = (("user", "1+1="), ("assistant", "2 ü"))
    record = EpisodeRecord(4, 0, "t", ("add",), 7, Outcome.SUCCESS, 1.0, 1, 3, messages)
    append_episodes(path, 1, [record, record])
    append_episodes(path, 2, [record])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 1, 2]
    assert rows[0]["outcome"] == "success"
    assert rows[0]["messages"][1] == ["assistant", "2 ü"]


@pytest.mark.parametrize("num_after", range(3))
def test_a_run_goes_back_to_what_its_checkpoint_knew(tmp_path, num_after):
    write(tmp_path, range(2))
    state = seal_logs(tmp_path)
    write(tmp_path, range(2, 2 + num_after))
    write(tmp_path, range(num_after), name="eval")
    for _ in range(2):  # it may be killed before it writes another checkpoint
        check_logs(tmp_path, state)
        cut_logs(tmp_path, state["logs"])
        assert read(tmp_path) == [0, 0, 1, 1]
        assert num_after == 0 or read(tmp_path, "eval") == []


def test_logs_are_cut_back_to_what_they_were(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    sizes = measure_logs(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    names = ("evaluation/sessions/oracle.jsonl", "mine.jsonl", "sessions/mine.jsonl")
    for name in (*names, "sessions/eval.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    cut_logs(tmp_path, sizes)
    assert [(tmp_path / name).read_text() for name in names] == ["{}\n"] * 3
    state = {"logs": {"exports/sft.jsonl": 500}, "log_sha256": {}}
    check_logs(tmp_path, state)  # of a checkpoint that listed what was not the run's
    assert (tmp_path / "metrics.jsonl").read_text() == "{}\n"
    assert (tmp_path / "sessions/eval.jsonl").read_text() == ""


def test_a_file_that_lost_lines_is_damage(tmp_path):
    write(tmp_path, range(5))
    state = seal_logs(tmp_path)
    write(tmp_path, range(5, 7))
    path = tmp_path / "sessions" / "train.jsonl"
    os.truncate(path, 10)
    with pytest.raises(CheckpointError, match=r"train\.jsonl.* has 10 bytes, and had \d+ at the"):
        check_logs(tmp_path, state)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"train\.jsonl.* has 0 bytes"):
        check_logs(tmp_path, state)


def test_a_folder_that_is_deleted_in_a_run_is_made_again_and_said(tmp_path, caplog):
    (tmp_path / "sessions").mkdir()
    write(tmp_path, [0])
    assert caplog.messages == []
    rmtree(tmp_path / "sessions")
    write(tmp_path, [1, 2])
    assert read(tmp_path) == [1, 1, 2, 2]
    (message,) = caplog.messages
    assert message == f"{tmp_path / 'sessions'} was deleted, with all episodes so far: made again"
