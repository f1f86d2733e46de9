"""`agentpeft replay`: an episode as it was, or another way from a turn on."""

import json
import re
import shutil

import pytest

from agentpeft.apps.lab.playing.recorded import EpisodeName, read_episode
from agentpeft.apps.lab.run_view import find_question
from agentpeft.launch.cli import main
from agentpeft.policies.checkpointing.checkpoints import read_best


@pytest.fixture
def replay(finished, capsys):
    """Returns the status and the output of the command, of the finished run or another."""

    def run(*words, run_dir=finished):
        status = main(["replay", str(run_dir), *words])
        return status, capsys.readouterr().out

    return run


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / finished.name, symlinks=True)


def rows(run_dir, name="train"):
    path = run_dir / "sessions" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def change(run_dir, name, **values):
    """Changes a sampled episode of three turns of version 0; returns its name."""
    found = rows(run_dir, name)
    row = next(row for row in found if row["num_turns"] == 3 and row["adapter_version"] == 0)
    row |= {key: value(row) if callable(value) else value for key, value in values.items()}
    path = run_dir / "sessions" / f"{name}.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in found), "utf-8")
    return f"{name}-{row['group_id']}-{row['sample']}"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("train-12-3", EpisodeName("train", 12, 3)),
        ("train-000000012-0003:2", EpisodeName("train", 12, 3, None, 2)),
        ("eval-5", EpisodeName("eval", 5, 0)),
        ("eval-5-1@40:1", EpisodeName("eval", 5, 1, 40, 1)),
    ],
)
def test_a_name_says_mode_group_sample_iteration_and_turn(text, name):
    assert EpisodeName.parse(text) == name


def test_every_episode_whose_adapter_is_kept_is_sampled_again_to_the_bit(replay, finished):
    for row in rows(finished)[:3] + rows(finished)[-1:]:
        status, shown = replay(f"train-{row['group_id']}-{row['sample']}")
        has_adapter = row["adapter_version"] in (0, 1, 3)
        assert status == 0
        assert ("; equal to the record: " in shown) and (("sampled again" in shown) == has_adapter)


@pytest.mark.slow
def test_an_episode_of_an_evaluation_is_played_with_the_adapter_of_its_iteration(replay):
    for iteration, source in ((0, "what training began with"), (3, "checkpoint-000003")):
        status, shown = replay(f"eval-2@{iteration}")
        assert status == 0 and f"sampled again with adapter {iteration} ({source})" in shown
        assert "all texts, return and outcome" in shown


def test_recorded_tokens_are_compared_where_there_are_any(replay, copied):
    row = rows(copied, "tokens")[0]
    name = f"train-{row['group_id']}-{row['sample']}"
    shown = replay(name, run_dir=copied)[1]
    equal = r"equal to the record: all tokens \(log-probabilities to (\S+)\), all texts"
    assert float(re.search(equal, shown)[1]) < 1e-5
    path = copied / "sessions/tokens.jsonl"
    other = row | {"tokens": ["x", *row["tokens"][1:]]}
    path.write_text(path.read_text("utf-8").replace(json.dumps(row), json.dumps(other)), "utf-8")
    status, shown = replay(name, run_dir=copied)
    assert status == 1 and "other tokens were sampled, though they read the same" in shown
    other = row | {"sampling_logprobs": [each - 0.5 for each in row["sampling_logprobs"]]}
    path.write_text(json.dumps(other) + "\n", "utf-8")
    status, shown = replay(name, run_dir=copied)
    assert status == 1 and "a token's log-probability is 0.5 away" in shown


def test_without_its_checkpoint_the_actions_are_played_against_the_environment(replay, finished):
    row = next(row for row in rows(finished) if row["adapter_version"] == 2)
    status, shown = replay(f"train-{row['group_id']}-{row['sample']}")
    assert status == 0
    assert shown.endswith(
        "the recorded actions were played against the environment again, for no checkpoint of "
        "adapter 2 is kept; equal to the record: prompt, all observations, return and outcome\n"
    )


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"episode_return": 5.0}, "its return was 5.0, and is -"),
        ({"outcome": "success"}, "its outcome was success, and is failure"),
        (
            {"messages": lambda row: [*row["messages"][:2], ["user", "Hm."], *row["messages"][3:]]},
            "the observation of turn 1 was 'Hm.', and is 'Wrong. Try again.'",
        ),
        ({"messages": lambda row: row["messages"][:3]}, "its number of turns was"),
        (
            {"messages": lambda row: [["user", "Else"], *row["messages"][1:]]},
            "the prompt was 'Else'",
        ),
    ],
)
def test_what_the_environment_answers_otherwise_is_said(values, problem, replay, copied):
    name = change(copied, "train", **values)
    status, shown = replay(name, "--actions", run_dir=copied)
    if "number of turns" in problem:  # fewer actions leave the episode without its end
        problem = "its outcome was failure, and is ongoing"
    assert status == 1 and f"differs from the record: {problem}" in shown


def test_what_the_policy_says_otherwise_is_said(replay, copied):
    name = change(copied, "train", num_tokens=99)
    status, shown = replay(name, run_dir=copied)
    assert status == 1 and "differs from the record: its num_tokens was 99, and is " in shown


def three_turns(finished):
    row = next(row for row in rows(finished) if row["num_turns"] == 3)
    return f"train-{row['group_id']}-{row['sample']}", row


def test_the_oracle_goes_on_after_the_first_turns(replay, finished):
    name, row = three_turns(finished)
    status, shown = replay(f"{name}:2", "--oracle")
    before, after = shown.split("the oracle from turn 2:\n")
    assert status == 0 and "recorded:" in before and row["messages"][5][1] in before
    assert after.startswith(f"» {row['messages'][1][1]}\n«") and "success in 2 turns" in after
    assert after.endswith(
        "the oracle from turn 2: success; equal to the record: the prompt and the observations "
        "before turn 2\n"
    )


def test_a_hand_goes_on_after_the_first_turns(replay, finished, monkeypatch, tmp_path):
    name, _ = three_turns(finished)
    (tmp_path / "typed").write_text("nothing\n17\n")
    with (tmp_path / "typed").open() as typed:
        monkeypatch.setattr("sys.stdin", typed)
        status, shown = replay(f"{name}:2")
    assert status == 0 and "you from turn 2:\n" in shown
    assert "» nothing\n« Invalid: reply with the number alone.  [-0.7]\n» 17\n" in shown


def test_a_hand_that_leaves_is_no_end_of_the_episode(replay, finished, monkeypatch, tmp_path):
    name, _ = three_turns(finished)
    (tmp_path / "typed").touch()
    with (tmp_path / "typed").open() as typed:
        monkeypatch.setattr("sys.stdin", typed)
        status, shown = replay(f"{name}:2")
    assert status == 0 and "\nleft in 1 turn, return -" in shown
    assert "\nyou from turn 2: left; equal to the record" in shown


def test_the_policy_goes_on_with_another_seed(replay, finished):
    name, _ = three_turns(finished)
    status, first = replay(f"{name}:2", "--resample", "3")
    assert status == 0 and "by adapter 3 (checkpoint-000003), seed 1; equal to the" in first
    names = [line.partition("  ")[0] for line in first.splitlines()[-5:-1]]
    assert names == ["recorded", "sample 1", "sample 2", "sample 3"]
    assert replay(f"{name}:2", "--resample", "3") == (0, first)
    assert replay(f"{name}:2", "--resample", "3", "--seed", "5")[1] != first


@pytest.mark.slow
def test_another_checkpoint_may_go_on(replay, finished):
    name, _ = three_turns(finished)
    checkpoints = finished / "checkpoints"
    best = read_best(checkpoints).checkpoint
    for word, number in ("best", int(best[-6:])), (str(checkpoints / "checkpoint-000001"), 1):
        shown = replay(f"{name}:1", "--resample", "1", "--checkpoint", word)[1]
        assert f"from turn 1 on by adapter {number} (checkpoint-00000{number})" in shown


def test_the_last_episodes_are_listed_by_name(replay, finished):
    status, shown = replay()
    last = rows(finished)[-1]
    assert status == 0 and f"train-{last['group_id']}-{last['sample']} " in shown
    assert "eval-0-0@3 " in shown and find_question(last["messages"]) in shown


def test_failures_and_a_skill_alone_can_be_listed(replay, copied):
    change(copied, "train", outcome="success", skills=["rare"], episode_return=1.0)
    name = change(copied, "train", outcome="failure", skills=["rare"])
    listed = replay("--skill", "rare", run_dir=copied)[1].splitlines()
    assert len(listed) == 2 and listed[1].startswith(f" {name} ")
    assert "success" not in replay("--failed", run_dir=copied)[1]
    change(copied, "train", outcome="success")
    shown = replay("--failed", "--skill", "rare", run_dir=copied)[1]
    assert shown.startswith("no such episodes were recorded")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no run in 'nowhere': there is no such folder"),
        (["RUN", "first"], "an episode is named train-GROUP-SAMPLE or eval-GROUP-SAMPLE@ITER"),
        (["RUN", "train-1-1@2"], "an episode is named"),
        (["RUN", "train-999-0"], "no episode train-999-0 in "),
        (["RUN", "eval-0@7"], "no episode eval-0-0@7 in "),
        (["RUN", "train-0-0:4"], "train-0-0 has turns 1 to "),
        (["RUN", "train-0-0:0"], "got :0"),
        (["RUN", "train-0-0", "--oracle"], "--oracle needs EPISODE:TURN, got train-0-0"),
        (["RUN", "--actions"], "--actions needs EPISODE without :TURN, got no episode"),
        (["RUN", "train-0-0:1", "--actions"], "--actions needs EPISODE without :TURN"),
        (["RUN", "train-0-0:1", "--oracle", "--resample", "2"], "one of them at a time"),
        (["RUN", "train-0-0:1", "--resample", "0"], "--resample must be"),
        (["RUN", "train-0-0", "--failed"], "choose what is listed: leave out train-0-0"),
        (["RUN", "train-0-0:1", "--seed", "2"], "--seed 2 is for --resample N"),
        (["RUN", "train-0-0:1", "--resample", "1", "--checkpoint", "no"], "checkpoint "),
    ],
)
def test_wrong_input_is_one_line(words, message, finished, capsys):
    assert main(["replay", *(str(finished) if word == "RUN" else word for word in words)]) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_a_task_that_has_changed_is_said(copied, capsys):
    name = change(copied, "train", task_id="addition:99+99:plain")
    assert main(["replay", str(copied), name, "--actions"]) == 2
    error = capsys.readouterr().err
    assert "was task 'addition:99+99:plain', and its position has 'addition:" in error


def test_a_damaged_checkpoint_is_refused(copied, capsys):
    row = next(row for row in rows(copied) if row["adapter_version"] == 1)
    path = copied / "checkpoints/checkpoint-000001/adapter/adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main(["replay", str(copied), f"train-{row['group_id']}-{row['sample']}"]) == 1
    assert "does not match its SHA-256" in capsys.readouterr().err


def test_a_terminal_is_told_nothing_by_an_agent(replay, copied):
    said = [["user", "Go."], ["assistant", "\x1b]0;injected\x07\x1b[2J"], ["user", "No.\x1b[2J"]]
    name = change(copied, "train", messages=said)
    status, shown = replay(name, "--actions", run_dir=copied)
    assert status == 1 and "\x1b" not in shown and "·]0;injected··[2J" in shown


def test_settings_are_those_of_the_time_of_the_episode(finished):
    found = read_episode(finished, EpisodeName.parse("eval-0@3"))
    assert found.checkpoint == finished / "checkpoints/checkpoint-000003"
    assert found.settings.training.num_iterations == 3
