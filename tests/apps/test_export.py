"""Episodes as preference pairs and supervised rows, and DPO with bare TRL on them."""

import json

import pytest
from needed_blocks import run_block

from agentpeft.apps.lab.export import main, to_preferences, to_sft_rows, to_unpaired_rows

PROMPT, WRONG, HIGHER = ["user", "Guess."], ["assistant", "1"], ["user", "Higher."]


def episode(sample, episode_return, *messages, group_id=0, outcome="failure"):
    return {
        "iteration": 0,
        "group_id": group_id,
        "sample": sample,
        "task_id": "t",
        "outcome": "success" if episode_return > 0 else outcome,
        "episode_return": episode_return,
        "messages": [PROMPT, *messages],
    }


def said(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def test_a_pair_is_the_first_action_that_differs_after_what_is_common():
    worse = episode(0, 0.0, WRONG, HIGHER, ["assistant", "0"], ["user", "No."])
    better = episode(1, 1.0, WRONG, HIGHER, ["assistant", "2"], ["user", "Right."])
    (pair,) = to_preferences([worse, better])
    assert pair == {
        "prompt": said(PROMPT, WRONG, HIGHER),
        "chosen": said(["assistant", "2"]),
        "rejected": said(["assistant", "0"]),
    }


def test_the_best_of_a_group_is_paired_with_the_worst_and_equal_returns_with_nothing():
    returns = [0.5, -1.0, 1.0, 0.5, -2.0]
    episodes = [episode(i, r, ["assistant", str(r)]) for i, r in enumerate(returns)]
    pairs = list(to_preferences(episodes))
    found = [(p["chosen"][0]["content"], p["rejected"][0]["content"]) for p in pairs]
    assert found == [("1.0", "-2.0"), ("0.5", "-1.0")]
    assert not list(to_preferences([episode(0, 0.5), episode(1, 0.5)]))


def test_episodes_of_different_groups_make_no_pair():
    first = episode(0, 0.0, ["assistant", "1"])
    assert not list(to_preferences([first, episode(0, 1.0, ["assistant", "2"], group_id=1)]))


def test_where_the_environment_answers_in_two_ways_there_is_no_pair():
    episodes = [
        episode(0, 0.0, WRONG, ["user", "Lower."], ["assistant", "0"]),
        episode(1, 1.0, WRONG, HIGHER, ["assistant", "2"]),
    ]
    assert not list(to_preferences(episodes))


def test_supervised_rows_are_the_actions_of_successes():
    messages = WRONG, HIGHER, ["assistant", "2"], ["user", "Right."]
    rows = list(to_sft_rows([episode(0, 1.0, *messages), episode(1, 0.0, *messages)]))
    assert rows == [
        {"prompt": said(PROMPT), "completion": said(WRONG)},
        {"prompt": said(PROMPT, WRONG, HIGHER), "completion": said(["assistant", "2"])},
    ]


def test_unpaired_rows_are_the_actions_that_led_to_one_end_alone():
    two, zero = ["assistant", "2"], ["assistant", "0"]
    episodes = [
        episode(0, 1.0, WRONG, HIGHER, two),
        episode(1, 0.0, WRONG, HIGHER, zero),
        episode(2, 0.0, WRONG, HIGHER, zero),
    ]
    assert list(to_unpaired_rows(episodes)) == [
        {"prompt": said(PROMPT, WRONG, HIGHER), "completion": said(two), "label": True},
        {"prompt": said(PROMPT, WRONG, HIGHER), "completion": said(zero), "label": False},
    ]


@pytest.mark.parametrize("kind", ["preference", "sft", "unpaired"])
def test_a_run_is_exported_without_repeated_rows(finished, tmp_path, capsys, kind):
    output = tmp_path / "rows.jsonl"
    assert main([str(finished), "--format", kind, "--output", str(output)]) == 0
    lines = output.read_text().splitlines()
    said_last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said_last == {"output": str(output), "rows": len(lines)}
    assert 0 < len(lines) == len(set(lines))


@pytest.mark.parametrize("kind", ["preference", "sft"])
def test_rows_have_the_variables_of_the_chat_template_and_no_file_is_overwritten(
    tmp_path, capsys, kind
):
    (tmp_path / "sessions").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"train/step": 1}\n')
    (tmp_path / "config.toml").write_text("[model]\nchat_template_kwargs = {thinking = false}\n")
    episodes = [episode(0, 1.0, ["assistant", "2"]), episode(1, 0.0, WRONG)]
    lines = "".join(json.dumps(each) + "\n" for each in episodes)
    (tmp_path / "sessions" / "train.jsonl").write_text(lines)
    assert main([str(tmp_path), "--format", kind]) == 0
    output = tmp_path / "exports" / f"{kind}.jsonl"
    assert json.loads(output.read_text())["chat_template_kwargs"] == {"thinking": False}
    capsys.readouterr()
    assert main([str(tmp_path), "--format", kind]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {output} exists: --force overwrites it")


def test_later_iterations_alone_can_be_exported(finished, tmp_path, capsys):
    output = ["--output", str(tmp_path / "rows.jsonl")]
    main([str(finished), *output])
    main([str(finished), *output, "--force", "--from-iteration", "2"])
    every, late = (json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines())
    assert 0 < late < every
    assert main([str(finished), *output, "--force", "--from-iteration", "3"]) == 2
    assert "from iteration 3 on: no preference row" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no run in")


@pytest.mark.slow
@pytest.mark.long
def test_bare_trl_trains_dpo_on_the_pairs(finished, tmp_path, trl_python, monkeypatch):
    (tmp_path / "merged").symlink_to(finished.parents[1] / "merged")
    monkeypatch.chdir(tmp_path)
    assert main([str(finished), "--output", "preference.jsonl"]) == 0
    after = "print(trainer.state.global_step, trainer.state.log_history[-1]['train_loss'] > 0)"
    assert run_block("docs/training/export.md", "DPO", trl_python, tmp_path, after) == "2 True"
