"""What a rise consists of and whether it is proven: by hand, by scripted policies, and trained."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from agentpeft.apps.lifelong.stage_runs import check_plan
from agentpeft.apps.prove import measures, prove
from agentpeft.apps.prove.command import main, read_seeds
from agentpeft.apps.prove.form import WELL_FORMED_END, reward_well_formed_end, with_form_reward
from agentpeft.apps.prove.measures import NUM_SAMPLES, REWARDS, read_seed, with_rewards
from agentpeft.apps.prove.page import choose_new, write_page
from agentpeft.apps.prove.split import (
    SeedResult,
    TaskResult,
    compute_figures,
    find_part,
    make_proof,
    measure_noise,
)
from agentpeft.apps.prove.study import plan_study, run_study, summarize, write_results
from agentpeft.envs import Outcome, SettingsError
from agentpeft.launch.evaluating import contest
from agentpeft.launch.evaluating.evaluation_files import EvaluationFiles
from agentpeft.launch.evaluating.players import Contestant, Methods
from agentpeft.launch.run.run_folder import lock_run
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.checkpointing.run_logs import append_episodes
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import MIXTURE, without_training_rewards

ROOT = Path(__file__).parents[2]
# solved before, after, after with shuffled rewards, after the reward for form; successes of 8
BY_HAND = """
1 1 1 1 8
1 1 1 1 6
1 0 1 1 4 lost
0 1 0 1 2 form
0 1 0 1 0 form
0 1 0 0 4 elicited
0 1 0 0 1 elicited
0 1 0 0 0 new
0 1 0 0 0 new
0 1 1 0 0 new
0 0 0 0 2
0 0 0 1 0
"""
"""The worked example of the page."""
TINY = """
experiment = "tiny"
deterministic = true
environment = {kwargs = {num_digits = 1, prompt = "compact", split = "train"}}
num_threads = 1
tiny = {hidden_size = 32, num_layers = 1}
lora = {rank = 4, alpha = 8.0}
warm_start = {num_steps = 40, batch_size = 16, lr = 1e-2}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 4, num_groups = 8, group_size = 4, lr = 1e-2}
evaluation = {num_tasks = 12, interval = 2, env_kwargs = {split = "test"}}
"""
FEW = "evaluation.num_tasks=12"


class FixedReward(gymnasium.Env):
    """One turn of text, whose reward cannot be chosen."""

    observation_space = action_space = gymnasium.spaces.Text(9)

    def __init__(self, split):
        self.split = split

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "say a", {}

    def step(self, action):
        return "", float(action == "a"), True, False, {}


class AnyArgument(FixedReward):
    """The same; it does not say so."""

    def __init__(self, split, **anything):
        super().__init__(split)


gymnasium.register("Tests/FixedReward-v0", FixedReward)
gymnasium.register("Tests/AnyArgument-v0", AnyArgument)


def make_task(position, text):
    before, after, shuffled, form, num_successes = map(int, text.split()[:5])
    skills = ("sums",) if position < 8 else ("sums", "hard")
    solved = map(bool, (before, after, shuffled, form))
    return TaskResult(position, f"task:{position}", skills, *solved, NUM_SAMPLES, num_successes)


@pytest.fixture
def twelve():
    return [make_task(place, line) for place, line in enumerate(BY_HAND.strip().splitlines())]


def test_twelve_tasks_give_the_figures_computed_by_hand(twelve):
    words = [line.split() for line in BY_HAND.strip().splitlines()]
    assert [find_part(task) for task in twelve] == [
        row[5] if len(row) > 5 else None for row in words
    ]
    figures = compute_figures([twelve])
    rates = {"before": 3, "after": 9, "after_shuffled": 4, "after_form": 6}
    rates |= {"pass@1": 27 / 8, "pass@2": 132 / 28, "pass@8": 7}
    pass_at_4 = sum((70, 70, 69, 55, 69, 35, 55)) / 70  # 1 - C(8 - c, 4) / C(8, 4)
    rates |= {"pass@4": pass_at_4}
    assert figures.rates == pytest.approx({name: value / 12 for name, value in rates.items()})
    means = {name: 12 * figure.mean for name, figure in figures.differences.items()}
    assert means == pytest.approx(
        {
            "rise": 6,
            "rise_shuffled": 1,
            "rise_form": 3,
            "rise_above_shuffled": 5,
            "rise_without_form": 4,
            "rise_above_shuffled_without_form": 3,
            "rise_where_base_was_graded": 6,
        }
    )
    parts = {name: 12 * figure.mean for name, figure in figures.parts.items()}
    assert parts == pytest.approx({"form": 2, "elicited": 2, "new": 3, "lost": 1})
    # 7 of 12 better, 1 worse, and two more tasks: 6 of 14, with 9 / 14 as the mean square
    half = 1.96 * ((9 / 14 - (6 / 14) ** 2) / 14) ** 0.5
    rise = figures.differences["rise"]
    assert (rise.low, rise.high) == pytest.approx((6 / 14 - half, 6 / 14 + half), abs=1 / 14)
    proof = make_proof([SeedResult(0, tuple(twelve), {})])
    assert not proof.verdict.is_proven
    assert proof.by_skill["hard"].num_tasks == 4
    assert 4 * proof.by_skill["hard"].differences["rise"].mean == pytest.approx(2)
    # 3 solved tasks in two halves of 6: 0 to 3, which 84 + 84 of 924 halvings do
    assert proof.verdict.noise == proof.verdict.allowed == 0.5


def test_a_rise_is_the_sum_of_its_parts_in_every_seed():
    rng = np.random.default_rng(0)
    seeds = [
        [
            make_task(place, f"{' '.join(map(str, rng.integers(2, size=4)))} {rng.integers(9)}")
            for place in range(50)
        ]
        for _ in range(3)
    ]
    figures = compute_figures(seeds)
    parts = {name: figure.mean for name, figure in figures.parts.items()}
    added = parts["form"] + parts["elicited"] + parts["new"] - parts["lost"]
    assert figures.differences["rise"].mean == pytest.approx(added)
    same = compute_figures(seeds)
    assert same == figures


def test_noise_is_what_halves_of_the_tasks_differ_by():
    solved = [make_task(place, f"{int(place < 90)} 0 0 0 0") for place in range(400)]
    p = 90 / 400
    assert measure_noise([solved]) == pytest.approx(1.96 * (p * (1 - p) * 4 / 399) ** 0.5, abs=0.01)
    assert measure_noise([solved] * 4) == measure_noise([solved])  # they are the same tasks
    others = [[replace(task, task_id=f"{seed}, {task}") for task in solved] for seed in range(4)]
    assert measure_noise(others) < 0.6 * measure_noise([solved])
    doubled = [*solved, *solved]
    right = [[replace(task, before=True) for task in few[:3]] for few in others]
    assert measure_noise(right) == 0.0
    assert measure_noise([doubled]) == pytest.approx(measure_noise([solved]), abs=0.005)
    assert measure_noise([[replace(task, before=False) for task in solved]]) == 0.0


def play(tasks, policy, path, iteration=0, samples=1):
    """Plays tasks of addition by a function of a task's sum, and writes the episodes."""
    env = gymnasium.make("agentpeft.envs:AgentPEFT/Arithmetic-v0", num_digits=3).unwrapped
    records = []
    for position, task in enumerate(tasks):
        prompt, info = env.reset(options={"task": task})
        action = policy(task, env.oracle_actions(env.task)[0])
        _, reward, *_, info = env.step(action)
        messages = (("user", prompt), ("assistant", action))
        fields = (
            info["task_id"],
            info["skills"],
            0,
            Outcome(info["outcome"]),
            reward,
            1,
            3,
            messages,
        )
        records += [EpisodeRecord(position, sample, *fields) for sample in range(samples)]
    path.parent.mkdir(parents=True, exist_ok=True)
    append_episodes(path, iteration, records)
    rate = sum(record.outcome is Outcome.SUCCESS for record in records) / len(records)
    with (path.parents[1] / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"train/step": iteration, "eval/success_rate": rate}) + "\n")


def prove_scripted(folder, base, trained, form=None, shuffled=None):
    """Returns the proof of scripted policies on 40 held-out tasks."""
    env = gymnasium.make("agentpeft.envs:AgentPEFT/Arithmetic-v0", num_digits=3, split="test")
    tasks = [env.unwrapped.task_source.draw(np.random.default_rng(n)).task_id for n in range(40)]
    after = {"true": trained, "shuffled": shuffled or base, "form": form or base}
    for kind, policy in after.items():
        path = folder / "seed-0" / kind / "sessions" / "eval.jsonl"
        play(tasks, base, path)
        play(tasks, policy, path, iteration=5)
    play(tasks, base, folder / "seed-0/samples/sessions/base.jsonl", samples=NUM_SAMPLES)
    return make_proof([read_seed(folder / "seed-0", 0)])


def talk(_task, answer):
    return f"The answer is {answer}."


def answer_plainly(_task, answer):
    return answer


def guess(_task, _answer):
    return "7"


def test_a_policy_that_learns_only_the_form_is_said_to_have_learned_form_alone(tmp_path):
    proof = prove_scripted(tmp_path, base=talk, trained=answer_plainly, form=answer_plainly)
    assert not proof.verdict.is_proven
    assert "form alone was learned" in proof.verdict.sentence
    assert proof.figures.parts["form"].mean == 1.0 == proof.figures.differences["rise"].mean


def test_form_that_its_own_run_does_not_show_is_not_taken_for_more(tmp_path):
    """The run rewarded for form guesses, which earns all of it, and so solves nothing."""
    proof = prove_scripted(tmp_path, base=talk, trained=answer_plainly, form=guess)
    assert proof.figures.parts["form"].mean == 0.0 == proof.figures.differences["rise_form"].mean
    assert not proof.verdict.is_proven
    assert "form cannot be told from the rest" in proof.verdict.sentence


def test_form_alone_is_not_said_where_most_of_an_unsure_rise_is_not_form():
    kinds = ["1 1 1 1 8"] * 30 + ["0 1 0 1 0"] * 3 + ["0 1 0 0 0"] * 9
    kinds += ["1 0 1 1 1"] * 3 + ["0 0 0 0 0"] * 55
    tasks = tuple(make_task(place, kind) for place, kind in enumerate(kinds))
    sentence = make_proof([SeedResult(0, tasks, {})]).verdict.sentence
    assert "it is not shown that more than form was learned: held-out success 33.0" in sentence


def test_what_is_not_form_must_be_above_the_control():
    """Of 140 tasks solved anew 120 are form, and the 20 others the shuffled run solves too."""
    kinds = ["1 1 1 1 8"] * 100 + ["0 1 0 1 0"] * 120 + ["0 1 1 0 4"] * 20 + ["0 0 0 0 0"] * 160
    tasks = tuple(make_task(place, kind) for place, kind in enumerate(kinds))
    proof = make_proof([SeedResult(0, tasks, {})])
    assert proof.figures.differences["rise_without_form"].low > 0
    assert "what is not form is not shown to be above shuffled" in proof.verdict.sentence


def test_a_policy_that_memorises_training_tasks_is_said_not_to_have_learned(tmp_path):
    env = gymnasium.make("agentpeft.envs:AgentPEFT/Arithmetic-v0", num_digits=3, split="train")
    draws = (env.unwrapped.task_source.draw(np.random.default_rng(n)) for n in range(500))
    seen = {task.task_id for task in draws}
    proof = prove_scripted(
        tmp_path, base=guess, trained=lambda task, answer: answer if task in seen else "7"
    )
    assert not proof.verdict.is_proven
    assert "nothing was learned" in proof.verdict.sentence


def test_a_rise_that_shuffled_rewards_bring_too_is_not_proven(tmp_path):
    proof = prove_scripted(
        tmp_path,
        base=guess,
        trained=answer_plainly,
        shuffled=lambda task, answer: answer if task[-7] < "5" else "7",
    )
    assert proof.figures.differences["rise_above_shuffled"].low > 0
    assert not proof.verdict.is_proven
    assert "shuffled rewards too" in proof.verdict.sentence


def test_a_control_that_rises_by_less_than_halves_differ_is_no_noise_if_it_is_sure():
    """Ten of 40 tasks are solved before, 20 with shuffled rewards and 38 with true ones."""
    tasks = [make_task(n, f"{n < 10:d} {n < 38:d} {n < 20:d} 0 0") for n in range(40)]
    proof = make_proof([SeedResult(0, tuple(tasks), {})])
    rise = proof.figures.differences["rise_shuffled"]
    assert rise.low > 0 and rise.mean < proof.verdict.allowed
    assert "success rises with shuffled rewards too, +25.0 points" in proof.verdict.sentence


def test_what_was_not_played_or_seen_in_training_or_was_right_before_proves_nothing(twelve):
    many = tuple(make_task(n, f"{n < 10:d} {n < 38:d} 0 0 0") for n in range(40))
    assert make_proof([SeedResult(0, many, {}, num_unplayed=4)]).verdict.is_proven
    for result, said in (
        (SeedResult(0, many, {}, num_unplayed=5), "5 of 45 held-out tasks were not played"),
        (SeedResult(0, many, {}, num_seen=1), "training has drawn held-out tasks too, 1 of 40"),
        (
            SeedResult(0, tuple(replace(task, before=True, after=True) for task in twelve), {}),
            "the base solves every held-out task",
        ),
    ):
        assert said in make_proof([result]).verdict.sentence


def test_runs_that_began_from_other_models_are_refused(tmp_path):
    proof = prove_scripted(tmp_path, base=guess, trained=answer_plainly)
    path = tmp_path / "seed-0/form/sessions/eval.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    others = [row for row in rows if row["iteration"] == 0][:8]
    for row in others:
        row["outcome"] = "success"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(TrainingError, match=r"form began from another model than .*true, as 8 of"):
        read_seed(tmp_path / "seed-0", 0)
    others[0]["outcome"] = "failure"  # seven of 40, as rounding may do
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert read_seed(tmp_path / "seed-0", 0).tasks == proof.seeds[0].tasks
    with (tmp_path / "seed-0/form/metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"train/step": 5, "eval/num_seen_tasks": 3.0}) + "\n")
    assert read_seed(tmp_path / "seed-0", 0).num_seen == 3


def test_tasks_and_skills_may_have_any_name(tmp_path):
    proof = prove_scripted(tmp_path, base=guess, trained=answer_plainly)
    named = replace(proof.seeds[0].tasks[0], task_id="\ud800 Pen", skills=("all",))
    changed = make_proof([replace(proof.seeds[0], tasks=(named, *proof.seeds[0].tasks[1:]))])
    write_results(changed, tmp_path)
    (row, *_) = (tmp_path / "tasks.jsonl").read_text("utf-8").splitlines()
    assert json.loads(row)["task_id"] == "\ud800 Pen"
    text = write_page(changed, tmp_path).read_text("utf-8")
    cells = [f'<tr><th>all</th><td class="number">{number}</td>' for number in (40, 1)]
    assert [text.count(cell) for cell in cells] == [1, 1]


def test_a_base_that_is_an_adapter_plays_with_it(tmp_path, monkeypatch):
    played = []
    monkeypatch.setattr(contest, "evaluate", lambda _, who, *__, **___: played.extend(who))
    (tmp_path / "adapter_config.json").write_text("{}")
    for name, adapter in (("base", None), (str(tmp_path), None), ("base", "other")):
        settings = Settings(environment={"id": "AgentPEFT/Arithmetic-v0"})
        settings = settings.with_model(name=name, adapter=adapter)
        measures._play_samples(settings, tmp_path, StopSignals(), None)
    assert [(each.kind, each.target) for each in played] == [
        ("base", "base"),
        ("adapter", str(tmp_path)),
        ("adapter", "other"),
    ]


def test_what_is_learned_beyond_form_is_proven_and_shown(tmp_path):
    proof = prove_scripted(tmp_path, base=guess, trained=answer_plainly)
    assert proof.verdict.is_proven
    assert proof.figures.parts["new"].mean == 1.0
    write_results(proof, tmp_path)
    text = write_page(proof, tmp_path).read_text(encoding="utf-8")
    assert proof.verdict.sentence.replace("->", "→") in text
    assert text.count('data-role="trained: success"') == 5
    assert text.count("<svg") == 2
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results == json.loads(json.dumps(summarize(proof)))
    assert results["curves"]["0"]["true"] == {"0": 0.0, "5": 1.0}
    rows = (tmp_path / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 40
    shown = [task.position for task in choose_new(proof.seeds[0].tasks)]
    assert len(shown) == 5 and shown == sorted(shown)


def test_measurements_of_other_tasks_are_refused(tmp_path):
    prove_scripted(tmp_path, base=guess, trained=answer_plainly)
    path = tmp_path / "seed-0/samples/sessions/base.jsonl"
    path.write_text(path.read_text("utf-8").replace("addition:", "other:"), encoding="utf-8")
    with pytest.raises(TrainingError, match="held-out task 0 is not the same"):
        read_seed(tmp_path / "seed-0", 0)


@pytest.mark.parametrize(
    ("path", "iteration"),
    [
        ("samples/sessions/base.jsonl", 0),
        ("true/sessions/eval.jsonl", 0),
        ("true/sessions/eval.jsonl", 5),
        ("form/sessions/eval.jsonl", 5),
    ],
)
def test_a_task_that_an_evaluation_lost_is_left_out_and_counted(tmp_path, path, iteration):
    prove_scripted(tmp_path, base=guess, trained=answer_plainly)
    file = tmp_path / "seed-0" / path
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    lost = next(row for row in rows if (row["group_id"], row["iteration"]) == (7, iteration))
    rows.remove(lost)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = read_seed(tmp_path / "seed-0", 0)
    assert [task.position for task in result.tasks] == [n for n in range(40) if n != 7]
    assert summarize(make_proof([result]))["num_unplayed"] == result.num_unplayed == 1
    write_page(make_proof([result]), tmp_path)
    assert "1 more are left out" in (tmp_path / "prove.html").read_text("utf-8")


def test_a_loss_is_not_called_chance(tmp_path):
    proof = prove_scripted(tmp_path, base=answer_plainly, trained=guess)
    assert "Not proven: training lowered success: held-out" in proof.verdict.sentence
    assert "chance" not in proof.verdict.sentence


@pytest.mark.parametrize(
    ("action", "reward"), [("15", 1.0), ("16", 1.0), ("The sum is 15", 0.0), ("", 0.0)]
)
def test_an_end_that_can_be_graded_earns_what_success_does(action, reward):
    kwargs = with_form_reward({"reward": "exact_match", "partial_credit": 0.5})
    assert kwargs == {"reward": {"preset": "exact_match", "reward_fn": WELL_FORMED_END}}
    env = gymnasium.make("agentpeft.envs:AgentPEFT/Arithmetic-v0", **kwargs)
    env.reset(options={"task": "addition:8+7:plain"})
    assert env.step(action)[1] == reward


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.ONGOING])
def test_only_right_and_wrong_ends_are_well_formed(outcome):
    env = gymnasium.make("agentpeft.envs:AgentPEFT/Arithmetic-v0").unwrapped
    env.reset(seed=0)
    is_graded = outcome in (Outcome.SUCCESS, Outcome.FAILURE)
    assert reward_well_formed_end(replace(env.episode, outcome=outcome)) == is_graded


def test_the_sources_of_a_mixture_are_rewarded_for_form_one_by_one():
    source = {"name": "sums", "id": "AgentPEFT/Arithmetic-v0", "kwargs": {"reward": "db"}}
    changed = with_form_reward({"sources": [source], "split": "train"})
    reward = {"preset": "db", "reward_fn": WELL_FORMED_END}
    assert changed == {"sources": [{**source, "kwargs": {"reward": reward}}], "split": "train"}


def test_the_runs_of_a_seed_differ_in_their_rewards_alone():
    settings = plan_study(["quickstart"]).settings
    true, shuffled, form = (
        with_rewards(settings, "base", rewards).model_dump()
        for rewards in ("true", "shuffled", "form")
    )
    assert form["environment"]["kwargs"].pop("reward")["reward_fn"] == WELL_FORMED_END
    assert true["environment"]["kwargs"].pop("reward") == "exact_match"
    assert form["evaluation"]["env_kwargs"].pop("reward") == "exact_match"
    del shuffled["environment"]["kwargs"]["reward"]
    assert shuffled["training"].pop("shuffle_rewards") and not true["training"]["shuffle_rewards"]
    for values in (true, form):
        del values["training"]["shuffle_rewards"]
    for values in (true, shuffled, form):
        del values["experiment"]
    assert true == shuffled == form
    assert true["evaluation"]["num_tasks"] == 400 and true["evaluation"]["interval"] == 10


def held_out_reward(settings):
    return without_training_rewards(settings.held_out_kwargs).get("reward")


@pytest.mark.parametrize(
    ("config", "kwargs", "stages", "shown"),
    [
        ("arithmetic_add", "{}", "[]", "exact_match"),
        ("db_bench", "{}", "[]", "db"),  # the class's own
        ("arithmetic_add", '{partial_credit = 0.5, reward = "os"}', "[]", "os"),
        (
            "arithmetic_add",
            '{reward = {preset = "db", turn_reward_fn = "operator:truth"}}',
            "[]",
            {"preset": "db"},
        ),
        (
            "arithmetic_add",
            "{}",
            '[{num_digits = 1, partial_credit = 0.5}, {num_digits = 2, reward = "db"}]',
            "exact_match",
        ),
    ],
)
def test_the_run_for_form_learns_from_form_alone_and_shows_the_settings_reward(
    config, kwargs, stages, shown
):
    words = [config, f"environment.kwargs={kwargs}", f"curriculum.stages={stages}"]
    words += ["environment.kwargs.split=train", "evaluation.env_kwargs.split=test"]
    form = with_rewards(plan_study(words).settings, "base", "form")
    assert held_out_reward(form) == shown
    for stage in form.stage_kwargs:
        assert stage["reward"]["reward_fn"] == WELL_FORMED_END
        assert "partial_credit" not in stage and "turn_reward_fn" not in repr(stage)


def test_the_stages_of_a_mixture_learn_from_form_alone_and_show_its_sources():
    sources = [{"id": "AgentPEFT/Arithmetic-v0", "kwargs": {"reward": "db", "num_digits": 1}}]
    values = plan_study(["arithmetic_add"]).settings.model_dump()
    values["environment"] = {
        "id": MIXTURE,
        "kwargs": {"sources": sources, "split": "train"},
    }
    changed = [{"sources": [{**sources[0], "name": name}]} for name in ("first", "second")]
    values["curriculum"] |= {"stages": changed}
    values["evaluation"]["env_kwargs"] = {"split": "test"}
    form = with_rewards(Settings(**values), "base", "form")
    for stage in form.stage_kwargs:
        (source,) = stage["sources"]
        assert source["kwargs"]["reward"]["reward_fn"] == WELL_FORMED_END
    assert form.held_out_kwargs["sources"] == sources


def test_an_environment_without_rewards_is_refused_before_anything_is_played(tmp_path):
    words = ["environment.kwargs={split = 'train'}", "warm_start.num_steps=0"]
    plan = plan_study(
        ["arithmetic_add", "environment.id=Tests/FixedReward-v0", *words], output=tmp_path / "out"
    )
    with pytest.raises(SettingsError, match="'reward', which Tests/FixedReward-v0 does not"):
        run_study(plan)
    assert not (tmp_path / "out").exists()
    anything = plan_study(
        ["arithmetic_add", "environment.id=Tests/AnyArgument-v0", *words], output=tmp_path / "out"
    )
    with pytest.raises(SettingsError, match="'reward', which Tests/AnyArgument-v0 does not"):
        run_study(anything)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_a_place_where_nothing_can_be_written_is_wrong_input(tmp_path, place):
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--output /.*: "):
        run_study(plan_study([str(tmp_path / "tiny.toml")], output=tmp_path / place))


def test_samples_of_another_type_are_refused_and_of_fewer_tasks_taken(tmp_path):
    prove_scripted(tmp_path, base=guess, trained=answer_plainly)
    of_tasks = [
        plan_study(["arithmetic_add", f"evaluation.num_tasks={n}"]).settings for n in (10, 50)
    ]
    result, lacking = (read_seed(tmp_path / "seed-0", 0, settings) for settings in of_tasks)
    assert len(result.tasks) == 10 and result.num_unplayed == 0
    assert len(lacking.tasks) == 40 and lacking.num_unplayed == 10  # which nobody has played
    player = Contestant("base", "base", "tiny")
    settings = plan_study(["arithmetic_add"]).settings
    files = EvaluationFiles(tmp_path / "new", settings, Methods())
    files.begin([player])
    files.append(player, list(measures.read_evaluation(tmp_path / "seed-0/true").values()))
    files.close()
    other = settings.with_model(dtype="bfloat16")
    with pytest.raises(SettingsError, match=r"is of model.dtype = 'auto', this is of 'bfloat16'"):
        EvaluationFiles(tmp_path / "new", other, Methods()).begin([player])


@pytest.mark.parametrize("text", ["[]", "{", '"a"', "3"])
def test_a_damaged_plan_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").touch()
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(SettingsError, match=r"another study|is damaged"):
        check_plan({"model": {}}, Settings(environment={"id": "AgentPEFT/Arithmetic-v0"}), tmp_path)


def test_other_files_under_the_same_names_are_another_study(tmp_path):
    data, folder = tmp_path / "tasks.jsonl", tmp_path / "study"
    folder.mkdir()
    environment = {"id": "AgentPEFT/GSM8K-v0", "kwargs": {"data": str(data)}}
    settings = Settings(environment=environment, evaluation={"num_tasks": 0, "interval": 0})
    for number in range(2):  # nothing has been played
        data.write_text(f"{number}")
        check_plan({"lr": number}, settings, folder)
    (folder / "evaluation.json").touch()
    check_plan({"lr": 2}, settings, folder)
    data.write_text("another")
    with pytest.raises(SettingsError, match=f"another study: its files.{data} is"):
        check_plan({"lr": 2}, settings, folder)


@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize(
    "config",
    [
        *("db_bench_coder_05b", "db_bench_coder_15b", "db_bench_qwen25_7b"),
        *("gsm8k_coder_15b", "os_interaction_coder_15b"),
    ],
)
def test_all_runs_with_vllm_play_by_the_one_engine_of_the_study(config, rewards):
    settings = plan_study([config]).settings
    run = with_rewards(settings, "base", rewards)
    with pytest.raises(SettingsError, match="which no run has outside it"):
        make_player(run)


def test_a_quick_study_is_shorter_where_nothing_else_is_said():
    quick = plan_study(["quickstart", "training.num_iterations=6"], is_quick=True)
    assert quick.seeds == (0,) and quick.folder.name == "quickstart-quick"
    settings = quick.settings
    assert (settings.training.num_iterations, settings.evaluation.num_tasks) == (6, 200)
    assert settings.evaluation.interval == 3 and settings.env_runners.num_env_runners == 0
    for word in ("max_adapter_lag=1", "env_runners.num_env_runners=2", "learners.num_learners=2"):
        told = plan_study(["quickstart", word], is_quick=True).settings
        assert told.env_runners.num_env_runners == 2
    whole = plan_study(["quickstart", "evaluation.interval=2"], is_quick=True).settings
    assert (whole.training.num_iterations, whole.evaluation.interval) == (10, 2)
    assert plan_study(["quickstart"], is_quick=True).settings.training.num_iterations == 10
    assert plan_study(["quickstart", "seed=4"]).seeds == (4, 5, 6)
    assert read_seeds("5,") == (None, [5]) and read_seeds("0,3") == (None, [0, 3])
    assert read_seeds("0,") == (None, [0])
    assert plan_study(["quickstart"], seeds=[2**63 - 1]).seeds == (2**63 - 1,)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_config"], "no_such_config"),
        (["arithmetic_add", "--seeds", "many"], "--seeds is how many"),
        (["arithmetic_add", "--seeds", "0"], "--seeds is how many"),
        (["arithmetic_add", "--seeds", "4,4"], "different"),
        (["arithmetic_add", "--seeds", "100000000000"], "from 1 to 100"),
        (["arithmetic_add", "--seeds", f"{2**63},"], "2**63 - 1"),
        (["arithmetic_add", "--seeds", "9" * 5000], "--seeds is how many"),
        (["arithmetic_add", "environment.kwargs.reward=5"], "reward must be a preset's name or"),
        (
            ["arithmetic_add", "curriculum.stages=[{},{reward=5}]"],
            "reward must be a preset's name or",
        ),
        (["arithmetic_add", "environment.kwargs.sources=['a']"], "a source must be a table"),
        (["arithmetic_add", "environment.kwargs.sources=5"], "sources must be a list"),
        (
            ["arithmetic_add", "environment.kwargs.sources=[{kwargs=3}]"],
            "a source must be a table, with kwargs as a table",
        ),
        (["arithmetic_add", "evaluation.num_tasks=0"], "evaluation.num_tasks must be >= 2, got 0"),
        (["arithmetic_add", "evaluation.num_tasks=0", "--quick"], "num_tasks must be >= 2, got 0"),
        (["arithmetic_add", "evaluation.num_tasks=0", "evaluation.interval=0"], "num_tasks"),
        (["arithmetic_add", "evaluation.env_kwargs={}"], "cannot draw"),
        (["arithmetic_add", "training.shuffle_rewards=true"], "shuffles rewards itself"),
        (["arithmetic_add", "env_runners.temperature=0"], "temperature"),
        (["arithmetic_add", "model.name=a/b", "warm_start.num_steps=5"], "model.adapter"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(words, said, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_prove_raises_what_is_wrong():
    with pytest.raises(SettingsError, match="different numbers"):
        prove(["arithmetic_add"], seeds=[1, 1])
    with pytest.raises(SettingsError, match="not both"):
        prove(["arithmetic_add"], num_seeds=2, seeds=[5])


def test_two_at_once_in_one_folder_are_refused(tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    with lock_run(tmp_path):
        assert main([str(tmp_path / "tiny.toml"), "--output", str(tmp_path)]) == 2
    assert "is being trained already, by process" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_proof_continues_to_the_same_results(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    words = [str(tmp_path / "tiny.toml"), "--seeds", "1", "--output"]
    assert main([*words, str(tmp_path / "whole")]) == 3
    whole = json.loads(capsys.readouterr().out.splitlines()[-1])
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "agentpeft.launch.cli", "prove", *words, str(out)]
    for moment in (
        "samples/sessions/base.jsonl",
        "true/config.toml",
        "shuffled/checkpoints/checkpoint-*",
    ):
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not any((out / "seed-0").glob(moment)):
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = (out / "seed-0/true/done.json").stat().st_mtime_ns
    assert main([*words, str(out)]) == 3
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    places = {"output", "page"}
    assert {n: v for n, v in again.items() if n not in places} == {
        n: v for n, v in whole.items() if n not in places
    }
    assert (out / "seed-0/true/done.json").stat().st_mtime_ns == done
    assert Path(whole["page"]).is_file() and whole["num_tasks"] == 12
    assert whole["curves"]["0"]["form"].keys() == {"0", "2", "4"}
    capsys.readouterr()
    assert main([*words, str(out), "training.lr=1"]) == 2
    assert "another study: its training.lr is 0.01, now 1.0" in capsys.readouterr().err
