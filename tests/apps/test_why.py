"""`agentpeft why`: what a run has learnt, what still fails, and what to do next."""

import json

import pytest

from agentpeft.apps.lab.playing.recorded import EpisodeName
from agentpeft.apps.lab.run_view import find_question
from agentpeft.apps.lab.why import explain
from agentpeft.launch.reporting.run_data import read_run

DIVIDED = 'split = "train"}\n[evaluation]\nenv_kwargs = {split = "test"}'
UPDATE = {"sample/spread_share": 0.0, "train/accuracy": 0.0}


@pytest.fixture
def write_run(tmp_path, monkeypatch):
    """Returns a run's folder with metrics and evaluated episodes by hand, in the present folder."""
    monkeypatch.chdir(tmp_path)

    def write(lines, episodes=(), settings="training = {num_iterations = 2}"):
        run = tmp_path / "run"
        (run / "sessions").mkdir(parents=True)
        for name, rows in {"metrics": lines, "sessions/eval": episodes}.items():
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (run / f"{name}.jsonl").write_text(text, "utf-8")
        (run / "config.toml").write_text(settings, "utf-8")
        return list(explain(read_run(run)))

    return write


def updates(num_skipped, **values):
    return [
        {"train/step": step, **UPDATE, "train/num_skipped_updates": min(step, num_skipped)}
        | {f"train/{name}": value for name, value in values.items()}
        for step in (1, 2)
    ]


@pytest.mark.parametrize(
    ("accuracy", "advice"), [(0.0, "easier tasks"), (1.0, "harder tasks"), (0.5, "group_size")]
)
def test_a_short_run_without_a_gradient_is_told_what_helps(write_run, accuracy, advice):
    told = write_run(updates(2, accuracy=accuracy))
    place = told.index("no group had two different returns: no update had a gradient")
    assert advice in told[place + 1] and not any(line.startswith("next:") for line in told)
    assert "no alarm was up (alarms need 6 updates)" in told


def test_updates_with_a_gradient_are_counted_where_some_had_none(write_run):
    told = write_run(updates(1))
    assert "1 of 2 updates had a gradient" in told
    assert told[-1] == (
        "next: agentpeft train --resume run training.num_iterations=4 trains on; "
        "agentpeft merge run makes one model of it"
    )


SAMPLED = {"sample/num_episodes": 64.0}


def evaluated(step, rate, num_seen=0):
    names = {"success_rate": rate, "num_episodes": 20, "num_seen_tasks": num_seen}
    return {"train/step": step, **{f"eval/{name}": value for name, value in names.items()}}


@pytest.mark.parametrize(
    ("settings", "num_seen", "tasks"),
    [
        (DIVIDED, 0, "20 held-out tasks"),
        (DIVIDED, 19, "evaluation tasks (19 of 20 were trained on)"),
        ("}", 0, "20 evaluation tasks"),
    ],
)
def test_only_what_training_cannot_draw_is_called_held_out(write_run, settings, num_seen, tasks):
    lines = [evaluated(0, 0.0), *updates(0), evaluated(2, 0.95, num_seen)]
    kwargs = f"training = {{num_iterations = 2}}\n[environment]\nkwargs = {{{settings}"
    told = write_run(lines, settings=kwargs)
    assert told[1].startswith(f"success on {tasks} 0.0% -> 95.0%")
    assert told[-1].startswith("next: harder tasks have more to learn; ")


@pytest.mark.parametrize(
    ("trained", "values", "evaluated_at", "is_told"),
    [
        (0.94, SAMPLED, 2, True),
        (0.6, SAMPLED, 2, False),
        (0.94, {**SAMPLED, "curriculum/stage": 1.0}, 2, False),
        (0.94, {}, 2, False),  # imitation: the oracle's success
        (0.94, SAMPLED, 0, False),  # not evaluated since
    ],
)
def test_what_does_not_carry_over_is_told(write_run, trained, values, evaluated_at, is_told):
    learnt = [row | values for row in updates(0, accuracy=trained)]
    learnt[0]["train/accuracy"] = 0.4
    rows = [evaluated(0, 0.375), *learnt]
    rows.insert(1 + evaluated_at, evaluated(evaluated_at, 0.375))
    told = write_run(rows)
    assert any("carry over" in line for line in told) is is_told


def test_three_failures_of_the_last_evaluation_are_named_one_of_each_skill_first(write_run):
    episodes = [
        {"iteration": iteration, "group_id": group, "sample": 0, "skills": [skill]}
        | {
            "task_id": "t",
            "episode_return": 0.0,
            "messages": [["user", f"t(a)\nHow many {group}?"]],
        }
        | {"outcome": "success" if group == 0 else "failure"}
        for iteration in (0, 2)
        for group, skill in enumerate("aaaab")
    ]
    told = write_run([*updates(0), evaluated(2, 0.2)], episodes)
    place = told.index("4 of 5 episodes of the last evaluation failed; look at one:")
    shown = [line.split(maxsplit=4) for line in told[place + 1 : place + 4]]
    assert [line[:3] for line in shown] == [["agentpeft", "replay", "run"]] * 3
    names = [EpisodeName.parse(line[3]) for line in shown]
    assert {name.group_id for name in names} == {1, 2, 4}
    assert {name.iteration for name in names} == {2}
    assert shown[0][4] == f"# How many {names[0].group_id}?"


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        ("You work on a database.\n\nTask: Count the pets.", "Count the pets."),
        ("pets(name TEXT)\nCount the pets.\n4 turns", "Count the pets."),
        ("1 try: 22+24=", "1 try: 22+24="),
        ("go\nleft", "go"),
        ("", ""),
    ],
)
def test_the_question_is_what_the_prompt_asks(prompt, question):
    assert find_question([("system", "Be good."), ("user", prompt)]) == question
