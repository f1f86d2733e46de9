"""Every reader of a run's episodes takes those of all parts, as of one file."""

import json
from pathlib import Path
from shutil import copytree

import pytest

from agentpeft.apps.lab.playing.recorded import EpisodeName, list_episodes, read_episode
from agentpeft.apps.lab.watch import play_again, take_snapshot
from agentpeft.launch.cli import main
from agentpeft.launch.reporting.report_episodes import read_episodes
from agentpeft.launch.reporting.run_data import read_sessions
from agentpeft.policies.checkpointing.session_files import list_parts

ROOT = Path(__file__).parents[2]
NAMES = ("train", "eval", "tokens")


@pytest.fixture
def in_parts(finished, tmp_path):
    """The finished run with a file of its own for each iteration of each kind."""
    run = copytree(finished, tmp_path / finished.name, symlinks=True)
    for name in NAMES:
        path = run / "sessions" / f"{name}.jsonl"
        lines: dict[int, list[str]] = {}
        for line in path.read_text().splitlines(keepends=True):
            lines.setdefault(json.loads(line)["iteration"], []).append(line)
        files = [path.with_name(f"{name}.{number:06d}.jsonl") for number in range(1, len(lines))]
        for file, iteration in zip([*files, path], sorted(lines), strict=True):
            file.write_text("".join(lines[iteration]))
        assert len(list_parts(path)) == len(lines) > 2
    return run


def test_lines_come_in_order(finished, in_parts):
    for name in NAMES:
        assert list(read_sessions(in_parts, name)) == list(read_sessions(finished, name))


def test_a_report_has_the_same_episodes(finished, in_parts):
    assert read_episodes(in_parts, 10**9) == read_episodes(finished, 10**9)


@pytest.mark.parametrize("kind", ["preference", "sft", "unpaired"])
def test_an_export_has_the_same_rows(finished, in_parts, tmp_path, capsys, kind):
    written = []
    for number, run in enumerate((finished, in_parts)):
        output = tmp_path / f"{number}.jsonl"
        status = main(["export", str(run), "--format", kind, "--output", str(output)])
        written.append((status, output.read_text() if output.is_file() else ""))
    assert written[0] == written[1]
    capsys.readouterr()


def test_episodes_are_listed_and_found_by_their_names(finished, in_parts):
    assert list_episodes(in_parts, 20) == list_episodes(finished, 20)
    for text in ("train-0-0", "train-5-1", "eval-0-0@1", "eval-3"):
        name = EpisodeName.parse(text)
        one, other = read_episode(in_parts, name), read_episode(finished, name)
        assert (one.name, one.record, one.tokens) == (other.name, other.record, other.tokens)


def test_watching_shows_the_last_episodes_of_several_parts(finished, in_parts):
    """The newest file has one episode left, so the part before has the others."""
    path = in_parts / "sessions" / "train.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    last = {row["group_id"]: row for row in read_sessions(in_parts, "train")}  # of each group
    shown = take_snapshot(in_parts).episodes
    assert list(shown) == list(last.values())[-4:]
    end = take_snapshot(in_parts)
    views = list(play_again(end, read_sessions(in_parts, "train"), 1e9))
    assert views[-1] == end


def test_runs_are_compared_from_the_first_iteration_that_both_still_have(
    finished, in_parts, capsys
):
    assert main(["diff", str(finished), str(in_parts)]) == 0
    assert "the first episode that differs" not in capsys.readouterr().out
    first, *_ = list_parts(in_parts / "sessions" / "train.jsonl")
    first.unlink()  # as where there are too many
    assert main(["diff", str(finished), str(in_parts)]) == 0
    assert "the first episode that differs" not in capsys.readouterr().out
    last = in_parts / "sessions" / "train.jsonl"
    last.write_text(last.read_text().replace('"sample": 1', '"sample": 9'))
    assert main(["diff", str(finished), str(in_parts)]) == 0
    assert "the first episode that differs: iteration 3" in capsys.readouterr().out
