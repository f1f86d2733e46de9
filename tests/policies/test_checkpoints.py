import json
import resource
from contextlib import contextmanager

import pytest

from agentpeft.envs import Outcome
from agentpeft.policies.checkpoints import (
    append_episodes,
    checkpoint_path,
    cut_logs,
    latest_checkpoint,
    list_checkpoints,
    measure_logs,
    prune_checkpoints,
    read_state,
    write_checkpoint,
)
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.samples import EpisodeRecord


@contextmanager
def files_of_at_most(num_bytes):
    """Lets every longer write fail, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def save(folder, iteration, size=0):
    state = json.dumps({"iteration": iteration}).encode()
    path = checkpoint_path(folder, iteration)
    write_checkpoint(path, {"algorithm.json": state, "adapter/weights": b"w" * size})
    return path


def test_a_checkpoint_is_a_folder_of_its_files(tmp_path):
    path = save(tmp_path, 3, size=5)
    assert read_state(path) == {"iteration": 3}
    assert (path / "adapter" / "weights").read_bytes() == b"wwwww"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_else(tmp_path):
    path = save(tmp_path, 3, size=5)
    with files_of_at_most(1000), pytest.raises(CheckpointError, match="cannot write checkpoint"):
        save(tmp_path, 3, size=5000)
    assert (path / "adapter" / "weights").read_bytes() == b"wwwww"
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_of_the_same_name_is_replaced(tmp_path):
    save(tmp_path, 3, size=5)
    path = save(tmp_path, 3, size=2)
    assert (path / "adapter" / "weights").read_bytes() == b"ww"
    assert list(tmp_path.iterdir()) == [path]


def test_the_latest_is_the_newest_whole_one(tmp_path):
    for iteration in (9, 10):
        save(tmp_path, iteration)
    (tmp_path / ".new-checkpoint-000011-77").mkdir()
    (tmp_path / ".new-checkpoint-000011-77" / "algorithm.json").write_text("{}")
    checkpoint_path(tmp_path, 12).mkdir()
    assert latest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 10)


def test_only_the_newest_are_kept_and_leftovers_go(tmp_path):
    paths = [save(tmp_path, iteration) for iteration in (1, 2, 3)]
    (tmp_path / ".new-checkpoint-000004-77").mkdir()
    prune_checkpoints(tmp_path, 2)
    assert list_checkpoints(tmp_path) == sorted(tmp_path.iterdir()) == paths[1:]


def test_what_is_no_checkpoint_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        latest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        read_state(tmp_path)
    (tmp_path / "algorithm.json").write_text('{"iterat')
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        read_state(tmp_path)


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


def test_logs_are_cut_back_to_what_they_were(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    sizes = measure_logs(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    (tmp_path / "later.jsonl").write_text("{}\n")
    cut_logs(tmp_path, sizes)
    assert (tmp_path / "metrics.jsonl").read_text() == "{}\n"
    assert (tmp_path / "later.jsonl").read_text() == ""
