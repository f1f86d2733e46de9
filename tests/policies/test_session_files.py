"""The episodes' files: parts, their order and number, and a run that goes back to a checkpoint."""

import json
import os
from contextlib import suppress
from shutil import copytree, rmtree

import pytest

from agentpeft.envs import Outcome
from agentpeft.policies.checkpointing.checkpoints import check_logs, cut_logs, seal_logs
from agentpeft.policies.checkpointing.session_files import append_episodes, list_parts, number_parts
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import EpisodeRecord


def play(number):
    messages = (("user", "1+1="), ("assistant", "2 ü"))
    return EpisodeRecord(number, 0, "t", ("add",), 7, Outcome.SUCCESS, 1.0, 1, 3, messages)


def write(run_dir, iterations, *, num_kept=16, name="train"):
    """Two episodes an iteration; a part is closed after two iterations."""
    size = len(json.dumps({"iteration": 1, **vars(play(1))}))
    path = run_dir / "sessions" / f"{name}.jsonl"
    for iteration in iterations:
        append_episodes(path, iteration, [play(iteration)] * 2, 3 * size, num_kept)
    return path


def read_all(run_dir):
    return [iteration for rows in read(run_dir).values() for iteration in rows]


def read(run_dir, name="train"):
    """Returns the iterations of each file, by its name, oldest first."""
    parts = list_parts(run_dir / "sessions" / f"{name}.jsonl")
    return {
        part.name: [json.loads(line)["iteration"] for line in part.read_text().splitlines()]
        for part in parts
    }


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


def test_a_long_file_becomes_a_part_and_the_newest_are_kept(tmp_path):
    write(tmp_path, range(5))
    assert read(tmp_path) == {
        "train.000001.jsonl": [0, 0, 1, 1],
        "train.000002.jsonl": [2, 2, 3, 3],
        "train.jsonl": [4, 4],
    }
    write(tmp_path, range(5, 9), num_kept=2)
    assert list(read(tmp_path)) == ["train.000004.jsonl", "train.jsonl"]
    path = write(tmp_path, [9], num_kept=2)  # the next line begins the new file
    assert read(tmp_path) == {"train.000005.jsonl": [8, 8, 9, 9]}
    assert [number for number, _ in number_parts(path)] == [5]
    write(tmp_path, [10], num_kept=2)
    assert [number for number, _ in number_parts(path)] == [5, 6]


def test_files_of_other_names_are_no_parts(tmp_path):
    path = write(tmp_path, range(3))
    for name in ("train.1.jsonl", "train.old.jsonl", "train2.000001.jsonl", "a.train.000001.jsonl"):
        (tmp_path / "sessions" / name).write_text("")
    assert [part.name for part in list_parts(path)] == ["train.000001.jsonl", "train.jsonl"]


@pytest.mark.parametrize("num_before", range(6))
@pytest.mark.parametrize("num_after", range(7))
def test_a_run_goes_back_to_what_its_checkpoint_knew(tmp_path, num_before, num_after):
    write(tmp_path, range(num_before))
    state, before = seal_logs(tmp_path), read(tmp_path)
    write(tmp_path, range(num_before, num_before + num_after))
    write(tmp_path, range(num_after), name="eval")
    for _ in range(2):  # it may be killed before it writes another checkpoint
        check_logs(tmp_path, state)
        cut_logs(tmp_path, state["logs"])
        assert {name: rows for name, rows in read(tmp_path).items() if rows} == before
        assert not any(read(tmp_path, "eval").values())
    write(tmp_path, range(num_before, 9))
    assert read_all(tmp_path) == sorted([*range(9)] * 2)


@pytest.mark.parametrize("num_after", range(9))
def test_what_was_deleted_since_a_checkpoint_is_no_damage(tmp_path, num_after):
    """Of what the checkpoint knew, 2 iterations leave its last file, as a part, and 3 nothing."""
    write(tmp_path, range(7), num_kept=4)
    state = seal_logs(tmp_path)
    write(tmp_path, range(7, 7 + num_after), num_kept=2)
    for _ in range(2):
        check_logs(tmp_path, state)
        cut_logs(tmp_path, state["logs"])
        there = read_all(tmp_path)
        assert there == sorted([*range(7)] * 2)[-len(there) :] if there else num_after >= 3
    write(tmp_path, range(7, 9), num_kept=4)
    assert read_all(tmp_path)[-4:] == [7, 7, 8, 8]


def test_a_run_killed_between_any_two_steps_of_going_back_can_do_it_again(tmp_path, monkeypatch):
    run, steps = tmp_path / "run", 0
    run.mkdir()
    write(run, range(3))
    state, before = seal_logs(run), read(run)
    write(run, range(3, 9))
    while True:
        copy = copytree(run, tmp_path / f"copy{steps}")
        with monkeypatch.context() as patch:
            left = die_after(patch, steps)
            with suppress(InterruptedError):
                cut_logs(copy, state["logs"])
        check_logs(copy, state)
        cut_logs(copy, state["logs"])
        assert read(copy) == before
        if left():
            break
        steps += 1
    assert steps == 4  # two files are deleted, one is renamed and cut


def die_after(patch, num_steps):
    """Lets the steps after so many fail; returns what tells whether there were fewer."""
    done = []

    def counted(function):
        def call(*args, **kwargs):
            done.append(function)
            if len(done) > num_steps:
                raise InterruptedError
            return function(*args, **kwargs)

        return call

    for owner, name in ((os, "unlink"), (os, "replace"), (os, "truncate")):
        patch.setattr(owner, name, counted(getattr(owner, name)))
    return lambda: len(done) <= num_steps


@pytest.mark.parametrize("name", ["train.000001.jsonl", "train.000002.jsonl", "train.jsonl"])
def test_a_file_that_lost_lines_is_damage(tmp_path, name):
    write(tmp_path, range(5))
    state = seal_logs(tmp_path)
    write(tmp_path, range(5, 7))
    was = {"train.jsonl": "train.000003.jsonl"}.get(name, name)
    os.truncate(tmp_path / "sessions" / was, 10)
    with pytest.raises(CheckpointError, match=rf"{was}.* has 10 bytes, and had \d+ at the"):
        check_logs(tmp_path, state)


def test_a_part_that_is_gone_is_damage_where_an_older_one_is_there(tmp_path):
    write(tmp_path, range(5))
    state = seal_logs(tmp_path)
    (tmp_path / "sessions" / "train.000002.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"train\.000002\.jsonl.* has 0 bytes"):
        check_logs(tmp_path, state)


def test_a_folder_that_is_deleted_in_a_run_is_made_again_and_said(tmp_path, caplog):
    (tmp_path / "sessions").mkdir()
    write(tmp_path, [0])
    assert caplog.messages == []
    rmtree(tmp_path / "sessions")
    write(tmp_path, [1, 2])
    assert read_all(tmp_path) == [1, 1, 2, 2]
    (message,) = caplog.messages
    assert message == f"{tmp_path / 'sessions'} was deleted, with all episodes so far: made again"
