"""`agentpeft watch`, on a terminal and off it: a run that goes on, its end, and all of it again."""

import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from terminal import CLI
from tiny_run import TINY

from agentpeft.apps.lab.run_view import find_lamp
from agentpeft.apps.lab.watch import play_again, take_snapshot
from agentpeft.envs import SettingsError
from agentpeft.launch.cli import main
from agentpeft.launch.reporting.run_data import read_rows
from agentpeft.launch.run import run_folder
from agentpeft.launch.run.run_folder import is_held, lock_run

INJECTED = "\x1b]0;injected\x07\x1b[2J[red]x"


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.fixture
def run_dir(tmp_path):
    """A run by hand, of eight iterations that learn nothing, whose agents talk to terminals."""
    folder = tmp_path / "by_hand"
    lines = [{"train/step": 0, "eval/success_rate": 0.25, "eval/skill/[red]add": 0.5}]
    for step in range(1, 9):
        line = {"train/step": step, "train/accuracy": 0.5, "train/num_skipped_updates": step}
        line |= {"sample/outcome/success": 2, "sample/num_sampled_tokens": 20}
        times = {f"time/{part}_s": 0.5 for part in ("sample", "learn", "broadcast")}
        lines.append({**line, **times, "time/total_s": 1.5, "delivery/canary": 0.1})
    write(folder / "metrics.jsonl", lines)
    episodes = [
        {
            "iteration": step,
            "group_id": step,
            "sample": 0,
            "task_id": f"task {step}",
            "outcome": "success",
            "episode_return": 1.0,
            "messages": [["user", "Go."], ["assistant", f"said {step} {INJECTED}"]],
        }
        for step in range(8)
    ]
    write(folder / "sessions/train.jsonl", episodes)
    (folder / "config.toml").write_text('experiment = "e"\n[training]\nnum_iterations = 8\n')
    return folder


def test_off_a_terminal_the_view_is_printed_once_as_text(run_dir, capsys):
    assert main(["watch", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    assert "e/by_hand  ended" in shown and "iteration 8 of 8, 0:12 spent" in shown
    assert "● adapter 8 synced and verified" in shown
    assert "0.75 s and 10 tokens per success" in shown
    assert "25.0% -> 25.0%" in shown and "[red]add" in shown and "50%" in shown
    assert "train-7-0  success, return 1  Go.  » said 7" in shown
    assert "no_spread: in the last 3 updates" in shown and "training.group_size" in shown
    assert [name for name in range(8) if f"» said {name} " in shown] == [4, 5, 6, 7]
    assert "\x1b" not in shown and "\x07" not in shown


def test_on_a_terminal_a_run_that_has_ended_is_played_again_in_seconds(run_dir, open_terminal):
    terminal = open_terminal("watch", run_dir)
    assert "iteration 8" not in terminal.read_until("iteration 3 of 8")
    shown = terminal.read_until(None)
    assert terminal.process.wait(10) == 0
    assert "iteration 8 of 8" in shown and "said 7" in shown
    assert "\x1b]0;injected" not in terminal.raw and "\x1b[2J" not in terminal.raw


@pytest.mark.slow
def test_a_run_is_played_again(run_dir, open_terminal):
    terminal = open_terminal("watch", run_dir, "--replay", 2)  # slow enough to draw each
    start_s = time.monotonic()
    shown = terminal.read_until(None)
    assert terminal.process.wait(10) == 0 and time.monotonic() - start_s < 30
    places = [shown.index(f"iteration {step} of 8") for step in range(9)]
    assert places == sorted(places)
    early = shown[: places[3]]
    assert "said 1" in early and "said 5" not in early and "no_spread" not in early


def test_a_replay_keeps_its_speed_where_drawing_takes_longer_than_an_iteration(run_dir):
    lines = [{"train/step": step, "time/total_s": 1.0} for step in range(1, 1001)]
    write(run_dir / "metrics.jsonl", lines)
    rows = read_rows(run_dir / "sessions/train.jsonl")
    start_s, steps = time.monotonic(), []
    for view in play_again(take_snapshot(run_dir), rows, 1000.0):
        steps.append(view.step)
        time.sleep(0.05)
    assert 0.9 < time.monotonic() - start_s < 10
    assert len(steps) < 60 and steps == sorted(steps) and steps[-1] == 1000


def test_an_episode_longer_than_the_end_that_is_read_is_shown(run_dir, capsys):
    path = run_dir / "sessions/train.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    long = {**row, "group_id": 8, "task_id": "long one", "messages": [["assistant", "é" * 400_000]]}
    write(path, [row, long])
    assert [row["task_id"] for row in take_snapshot(run_dir).episodes] == ["task 7", "long one"]


def test_the_last_episode_of_a_group_stands_for_it(run_dir, capsys):
    path = run_dir / "sessions/train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write(path, [{**row, "sample": sample} for row in rows for sample in range(3)])
    with (run_dir / "config.toml").open("a") as file:
        file.write("group_size = 3\n")
    names = [(row["group_id"], row["sample"]) for row in take_snapshot(run_dir).episodes]
    assert names == [(4, 2), (5, 2), (6, 2), (7, 2)]


def test_the_view_is_written_as_a_picture_that_asks_no_other_site(run_dir, tmp_path, capsys):
    path = tmp_path / "run.svg"
    assert main(["watch", str(run_dir), "--svg", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = "".join(root.itertext()).replace("\xa0", " ")
    assert "agentpeft watch e/by_hand" in text and "iteration 8 of 8" in text and "[red]add" in text
    assert "@font-face" not in text and "url(http" not in path.read_text("utf-8")


def test_a_run_whose_files_do_not_change_is_drawn_once_more_at_most(run_dir, open_terminal):
    with (run_dir / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        terminal = open_terminal("watch", run_dir)
        terminal.read_until("said 7")
        time.sleep(3.5)
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write('{"train/step": 9, "time/total_s": 1.5}\n')
        shown = terminal.read_until("iteration 9 of 8")
        assert "iteration 9 of 8" in shown and shown.count("iteration 8 of 8") <= 2
    terminal.read_until(None)
    assert terminal.process.wait(10) == 0


def test_alarms_and_episodes_are_on_a_small_screen_while_a_run_goes_on(run_dir, open_terminal):
    skills = {f"eval/skill/skill {number}": 0.5 for number in range(12)}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"train/step": 8, **skills}) + "\n")
    with (run_dir / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        terminal = open_terminal("watch", run_dir, num_lines=32)
        shown = terminal.read_until("said 7")
        assert "no_spread" in shown and "skill 0" in shown and "more" in shown
        assert "skill 9" not in shown
    shown = terminal.read_until(None)
    assert terminal.process.wait(10) == 0
    assert "skill 9" in shown and "and 1 more" not in shown


@pytest.mark.slow
@pytest.mark.long
def test_a_run_is_followed_to_its_end(tmp_path, open_terminal):
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    words = ["tiny.toml", "training.num_iterations=120", "output.checkpoint_interval=0"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "AGENTPEFT_CACHE": str(tmp_path / "cache")}
    train = subprocess.Popen(
        [*CLI, "train", *words], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL
    )
    while not (found := list(tmp_path.glob("outputs/tiny/*/config.toml"))):
        time.sleep(0.05)
    terminal = open_terminal("watch", found[0].parent)
    assert "tiny/" in terminal.read_until("running")
    shown = terminal.read_until("iteration 120 of 120")
    assert " left" in shown and "synced and verified" in shown
    terminal.read_until(None)
    assert train.wait(30) == 0 and terminal.process.wait(10) == 0
    assert "ended" in terminal.shown.rpartition("iteration 120")[0]


def test_ctrl_c_ends_the_view_and_not_the_run(run_dir, open_terminal):
    with (run_dir / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_held(run_dir) and take_snapshot(run_dir).state == "running"
        terminal = open_terminal("watch", run_dir)
        terminal.read_until("running")
        terminal.process.send_signal(signal.SIGINT)
        assert "interrupted" in terminal.read_until(None)
        assert terminal.process.wait(10) == 130
    assert not is_held(run_dir)


def test_a_run_can_be_resumed_in_the_instant_in_which_it_is_looked_at(run_dir, monkeypatch):
    monkeypatch.setattr(run_folder, "_LOCK_WAIT_S", 5.0)  # or a busy machine's timer is too late
    with (run_dir / "run.lock").open("a+b") as watching:
        fcntl.flock(watching, fcntl.LOCK_SH)
        timer = threading.Timer(0.03, fcntl.flock, (watching, fcntl.LOCK_UN))
        timer.start()
        with lock_run(run_dir):
            assert is_held(run_dir)
        timer.join()
        monkeypatch.undo()
        fcntl.flock(watching, fcntl.LOCK_SH)
        with pytest.raises(SettingsError, match="is being trained already"), lock_run(run_dir):
            pass


def test_who_takes_a_run_undoes_what_a_killed_process_had_half_written(run_dir):
    names = (".new-config.toml-7f", "checkpoints/.new-checkpoint-000004-7f")
    for name in names:
        (run_dir / name / "part").mkdir(parents=True)
    with lock_run(run_dir):
        assert not any((run_dir / name).exists() for name in names)


def test_a_run_that_has_measured_nothing_yet_shows_its_log(run_dir, capsys):
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "sessions/train.jsonl").unlink()
    (run_dir / "logs").mkdir()
    (run_dir / "logs/train.log").write_text("first\nwarm start: step 50, loss 1.2\nhalf a li")
    assert main(["watch", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    assert "stopped" in shown and "warm start: step 50, loss 1.2" in shown and "half" not in shown
    assert "○ no adapter was synced yet" in shown


def test_empty_parts_are_hidden_and_lower_training_success_is_explained(run_dir, capsys):
    (run_dir / "sessions/train.jsonl").unlink()
    lines = [{"train/step": 1, "train/accuracy": 0.5}, {"train/step": 1, "eval/success_rate": 0.8}]
    write(run_dir / "metrics.jsonl", lines)
    (run_dir / "config.toml").write_text('curriculum = {sampling = "frontier"}')
    assert main(["watch", str(run_dir)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.endswith(
        "success is measured on evaluation tasks; training success is lower, as it chooses tasks "
        "that are half learnt"
    )


def test_what_was_not_said_is_told(run_dir, capsys):
    path = run_dir / "sessions/train.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    write(path, [row | {"messages": [["user", "Go."], ["assistant", ""], ["user", "No."]]}])
    assert main(["watch", str(run_dir)]) == 0
    assert "» (nothing) « No." in capsys.readouterr().out


def test_a_damaged_line_is_said_and_one_that_is_being_written_is_not(run_dir, capsys):
    with (run_dir / "sessions/train.jsonl").open("a") as file:
        file.write('{"half a li')
        file.flush()
        assert main(["watch", str(run_dir)]) == 0
        file.write("\n")
    assert main(["watch", str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert "one of its last lines: no JSON" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("rows", "colour", "text"),
    [
        ([], "dim", "no adapter"),
        ([{"delivery/canary": 1.0}], "green", "verified"),
        ([{}], "yellow", "synced, not verified"),
        ([{"fault/num_failed_deliveries": 1.0}], "red", "failed and was repeated"),
        ([{"fault/num_failed_deliveries": 1.0}] * 2, "yellow", "not verified"),
    ],
)
def test_the_lamp_tells_what_is_known_of_the_last_delivery(rows, colour, text):
    lines = [{"train/step": 1, "time/broadcast_s": 0.1, **row} for row in rows]
    lamp = find_lamp(lines)
    assert lamp.style == colour and text in lamp.plain


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "error: no run in 'nowhere': there is no such folder"),
        (["--replay", "2", "--svg", "x.svg"], "error: --svg is of the present view"),
        (["--replay", "0"], "error: --replay must be > 0, got 0"),
        (["--replay", "nan"], "error: --replay must be > 0, got nan"),
    ],
)
def test_wrong_input_is_one_line(words, message, capsys, run_dir: Path):
    assert main(["watch", *words, *([str(run_dir)] if words[0] != "nowhere" else [])]) == 2
    assert capsys.readouterr().err.startswith(message)
