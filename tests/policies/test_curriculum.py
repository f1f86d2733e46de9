"""Which tasks training takes: stages, the frontier, and groups in place of those without spread."""

import json
import math
from collections import Counter
from hashlib import sha256

import gymnasium
import pytest
from small_model import TWO_RUNNERS
from word_env import WordEnv, WordSource

from agentpeft.envs import Outcome, SettingsError, Taskset
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.loop.curriculum import Curriculum, count_spread, has_spread
from agentpeft.policies.loop.task_choice import SpreadRates
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.rollout.environments import open_stages
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

TINY = (*TWO_RUNNERS, "env_runners.num_env_runners=0")
STAGES = (
    "curriculum.stages=[{num_digits=1},{num_digits=2},{num_digits=3}]",
    "curriculum.promote_at=0",
    "curriculum.window=24",
)
FRONTIER = (
    "curriculum.sampling=frontier",
    "environment.kwargs.num_digits=[1,3]",
    "environment.kwargs.operations=['addition','subtraction']",
)
RESAMPLED = (
    "training.dynamic_sampling=3",
    "training.group_size=2",
    "env_runners.max_new_tokens=1",
)
"""One token to say, so that two episodes often earn the same."""
CURRICULA = {
    "stages": STAGES,
    "frontier": FRONTIER,
    "resampled": RESAMPLED,
    "all": (*STAGES, *FRONTIER[::2], *RESAMPLED),
}


class FewWords(WordEnv):
    """The same ten words again and again."""

    def __init__(self, **options):
        super().__init__(**options)
        self.task_source = Taskset(WordSource().get(f"word/{number}") for number in range(10))


gymnasium.register("Tests/FewWords-v0", FewWords)


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TINY, *overrides)))


@pytest.fixture
def make():
    """Returns curricula that are closed at the end."""
    made = []

    def start(*overrides):
        made.append(Curriculum(make_settings(*overrides)))
        return made[-1]

    yield start
    for curriculum in made:
        curriculum.close()


def records(request, wins, skills=(), task_id="task"):
    """Returns the episodes of a group, each won (1) or lost (0)."""
    return [
        EpisodeRecord(
            group_id=request.group_id,
            sample=sample,
            task_id=task_id,
            skills=skills,
            adapter_version=0,
            outcome=Outcome.SUCCESS if win else Outcome.FAILURE,
            episode_return=float(win),
            num_turns=1,
            num_tokens=1,
            messages=(),
        )
        for sample, win in enumerate(wins)
    ]


def all_won(requests):
    return [record for request in requests for record in records(request, (1, 1, 1))]


def positions(requests):
    return [request.group_id for request in requests]


# Groups with spread


def test_spread_is_different_returns_of_episodes_in_which_something_was_sampled(make):
    (request, other, *_) = make().next_groups(4)
    assert has_spread(records(request, (0, 1, 1)))
    assert not has_spread(records(request, (1, 1, 1)))
    assert count_spread([*records(request, (0, 1)), *records(other, (0, 0))]) == 1
    won, lost = records(request, (1, 0))
    mute = EpisodeRecord(**{**vars(lost), "num_turns": 0})
    assert not has_spread([won, mute])


def test_rates_are_decayed_counts_over_what_was_expected():
    rates = SpreadRates()
    assert rates.estimate(("a", "b"), "t") == 1.0
    for is_spread in (False, True):
        rates.record(("a",), None, is_spread)
    a = (1 + 1) / (0.9 + 1 + 1)  # s = 0.9 * 0 + 1, n = 0.9 * 1 + 1
    assert rates.estimate(("a",), None) == pytest.approx(a)
    assert rates.estimate(("a", "b"), None) == pytest.approx((a + 1) / 2 / (0 + 1))
    rates.record(("a", "b"), "t", False)
    a = (0.9 * 1 + 1) / (0.9 * 1.9 + 1 + 1)
    b = (0 + 1) / (1 + 1)
    both = (0 + (a + b) / 2) / (1 + 1)
    assert rates.estimate(("a", "b"), None) == pytest.approx(both)
    assert rates.estimate(("a", "b"), "t") == pytest.approx(both / 2)
    assert rates.estimate(("a", "b"), "u") == pytest.approx(both)


# Stages


def test_by_default_the_tasks_are_those_of_the_next_positions(make):
    curriculum = make()
    assert positions(curriculum.next_groups(4)) == [0, 1, 2, 3]
    assert positions(curriculum.next_groups(4)) == [4, 5, 6, 7]
    metrics = curriculum.end_round((), ())
    counts = {"sample/num_resampled_groups": 0.0, "sample/num_refilled_groups": 0.0}
    assert metrics == {"sample/spread_share": 0.0, **counts}
    assert curriculum.next_positions(4) == range(8, 12)


def test_a_stage_begins_once_the_one_before_it_succeeds(make):
    half = "curriculum.promote_at=0.5"
    curriculum = make(STAGES[0], "curriculum.window=6", half)
    seen = []
    for wins in ("000", "001", "111", "111", "111", "000", "000"):
        requests = curriculum.next_groups(4)
        seen.append(requests[0].stage)
        assert {request.stage for request in requests} == {requests[0].stage}
        played = [record for r in requests for record in records(r, tuple(map(int, wins)))]
        curriculum.end_round(requests, played)
    assert seen == [0, 0, 0, 1, 2, 2, 2]


def test_the_episodes_of_an_earlier_stage_do_not_promote_the_present_one(make):
    curriculum = make(STAGES[0], "curriculum.window=3")
    first = curriculum.next_groups(4)
    late = curriculum.next_groups(4)  # under way while the first one ends
    assert curriculum.end_round(first, all_won(first))["curriculum/stage"] == 1
    assert curriculum.end_round(late, all_won(late))["curriculum/stage"] == 1


def test_rounds_under_way_have_no_part_in_a_choice(make):
    """With a lag of 2, round r is chosen by rounds 0 to r - 3."""
    curriculum = make(STAGES[0], "curriculum.window=12")
    rounds = [curriculum.next_groups(4) for _ in range(3)]
    stages = []
    for _ in range(4):
        oldest = rounds.pop(0)
        curriculum.end_round(oldest, all_won(oldest))
        rounds.append(curriculum.next_groups(4))
        stages.append(rounds[-1][0].stage)
    assert stages == [1, 1, 1, 2]


def test_each_stage_has_its_own_tasks_and_environments():
    stages = open_stages(make_settings(STAGES[0]))
    assert [stage.task_at(7).num_digits for stage in stages] == [1, 2, 3]
    few = "curriculum.stages=[{max_turns=1},{max_turns=3}]"
    prompts = [stage.begin(0, stage.task_at(0))[1] for stage in open_stages(make_settings(few))]
    assert ["1 try" in prompts[0], "3 tries" in prompts[1]] == [True, True]


def test_training_goes_through_the_stages(build):
    """The oracle plays, so every round promotes."""
    algorithm = build("run", "env_runners.engine=scripted", STAGES[0], "curriculum.window=12")
    stages = [algorithm.train()["curriculum/stage"] for _ in range(3)]
    assert stages == [1, 2, 2]
    lines = (algorithm.run_dir / "sessions" / "train.jsonl").read_text().splitlines()
    skills = [(line["iteration"], line["skills"][1]) for line in map(json.loads, lines)]
    assert {(i, skill) for i, skill in skills} == {(i, f"{i + 1}_digits") for i in range(3)}


def test_the_success_rate_of_each_skill_is_a_metric_of_training(build):
    metrics = build("run", "env_runners.engine=scripted").train()
    assert metrics["train/skill/addition"] == metrics["train/skill/2_digits"] == 1.0


# The frontier


def play_a_skill(curriculum, pools, winning):
    """Plays a round in which groups of one skill alone have spread; returns its tasks' skills."""
    requests = curriculum.next_groups(32)
    played, skills = [], []
    for request in requests:
        task = pools[request.stage].task_at(request.group_id)
        wins = (0, 1, 0) if winning in task.skills else (0, 0, 0)
        played += records(request, wins, task.skills, task.task_id)
        skills.append(task.skills)
    curriculum.end_round(requests, played)
    return skills


def test_the_frontier_is_where_groups_have_spread(make):
    settings = (*FRONTIER, "training.num_groups=32")
    pools = open_stages(make_settings(*settings))
    shares = {}
    for sampling in ("uniform", "frontier"):
        curriculum = make(*settings, f"curriculum.sampling={sampling}")
        played = [play_a_skill(curriculum, pools, "2_digits") for _ in range(20)][5:]
        counts = Counter(skill for skills in played for task in skills for skill in task)
        shares[sampling] = counts["2_digits"] / (32 * 15)
        assert counts["1_digits"] > 0 and counts["3_digits"] > 0
    assert shares["uniform"] == pytest.approx(1 / 3, abs=0.06)  # the longer operand has two digits
    assert shares["frontier"] > 0.7


def test_the_frontier_takes_one_in_four_positions_in_their_order(make):
    curriculum = make(*FRONTIER)
    first, second = (positions(curriculum.next_groups(4)) for _ in range(2))
    assert first == sorted(set(first)) and second == sorted(set(second))
    assert set(first) <= set(range(16)) and set(second) <= set(range(16, 32))
    assert first == positions(make(*FRONTIER).next_groups(4))
    assert first != positions(make(*FRONTIER, "seed=1").next_groups(4))


def test_tasks_that_come_again_have_rates_of_their_own(make):
    settings = (
        "environment.id=Tests/FewWords-v0",
        "environment.kwargs=",
        "curriculum.sampling=frontier",
    )
    curriculum, (pool,) = make(*settings), open_stages(make_settings(*settings))
    words = Counter()
    for _ in range(60):
        played = []
        requests = curriculum.next_groups(4)
        for request in requests:
            task = pool.task_at(request.group_id)
            words[task.task_id] += 1
            wins = (1, 0, 0) if task.task_id in ("word/3", "word/4") else (1, 1, 1)
            played += records(request, wins, task_id=task.task_id)
        curriculum.end_round(requests, played)
    assert words["word/3"] + words["word/4"] > 0.4 * words.total()  # uniform: 0.2
    assert len(words) == 10


@pytest.mark.parametrize("env_id", ["Tests/Word-v0", "Tests/Plain-v0"])
def test_the_frontier_needs_something_that_it_is_known_by(env_id):
    settings = make_settings(
        f"environment.id={env_id}", "environment.kwargs=", "curriculum.sampling=frontier"
    )
    with pytest.raises(SettingsError, match="have no skills and no end"):
        Curriculum(settings)


@pytest.mark.long
@pytest.mark.slow
def test_the_frontier_raises_the_share_of_groups_that_teach(build):
    """A policy that knows one digit and is held where it is: other problems have no spread."""
    settings = (
        "training.num_groups=16",
        "training.group_size=8",
        "training.lr=1e-9",
        "env_runners.max_new_tokens=6",
        "environment.kwargs={operations=['addition','subtraction'],num_digits=[1,4]}",
        "environment.kwargs.prompt=compact",
        "warm_start.num_steps=150",
        "warm_start.lr=5e-3",
        "warm_start.env_kwargs={num_digits=1}",
        "deterministic=false",
    )
    shares = {}
    for sampling in ("uniform", "frontier"):
        algorithm = build(sampling, *settings, f"curriculum.sampling={sampling}")
        rounds = [algorithm.train()["sample/spread_share"] for _ in range(12)]
        shares[sampling] = sum(rounds[2:]) / 10
    assert shares["frontier"] > 1.5 * shares["uniform"] > 0


# Groups in place of those without spread


def test_as_many_groups_are_sampled_as_are_missing_up_to_the_limit(make):
    curriculum = make(*RESAMPLED)
    assert positions(curriculum.next_groups(4)) == [0, 1, 2, 3]
    assert positions(curriculum.next_groups(4)) == [4, 5, 6, 7]
    assert positions(curriculum.resample(2)) == [8, 9]
    assert positions(curriculum.resample(2)) == [10]
    assert positions(curriculum.resample(1)) == []
    assert curriculum.end_round((), ())["sample/num_resampled_groups"] == 3
    assert positions(curriculum.resample(1)) == [11]
    assert positions(make().next_groups(4)) and positions(make().next_groups(4)) == [0, 1, 2, 3]


def test_dynamic_sampling_fills_the_batch_with_groups_that_have_spread(build):
    """With a limit that is never reached, each update has `num_groups` groups that teach."""
    runs = {}
    for limit in (0, 100):
        algorithm = build(str(limit), *RESAMPLED, f"training.dynamic_sampling={limit or 'true'}")
        runs[limit] = [algorithm.train() for _ in range(4)]
    taught = {
        limit: [row["sample/num_episodes"] / 2 - row["train/num_dropped_groups"] for row in rows]
        for limit, rows in runs.items()
    }
    assert taught[100] == [4, 4, 4, 4] and min(taught[0]) < 4
    assert sum(row["sample/num_resampled_groups"] for row in runs[100]) > 0
    assert all(row["sample/num_resampled_groups"] == 0 for row in runs[0])


def test_resampling_ends_at_its_limit(build):
    """The oracle plays: nothing has spread, so nothing is learnt, and the round ends."""
    scripted = "env_runners.engine=scripted"
    metrics = build("run", *RESAMPLED, scripted, "environment.kwargs.reward=").train()
    assert metrics["sample/num_resampled_groups"] == 3
    assert metrics["sample/num_episodes"] == 2 * 7
    assert metrics["sample/spread_share"] == 0


# Checkpoints


def without_times(metrics):
    """Returns what may be compared: not the seconds, and what was not computed as None."""
    numbers = {name: value for name, value in metrics.items() if not name.startswith("time/")}
    return {name: None if math.isnan(value) else value for name, value in numbers.items()}


def adapter_hash(algorithm):
    path = algorithm.save_to_path() / "adapter" / "adapter_model.safetensors"
    return sha256(path.read_bytes()).hexdigest()


def check_resuming(build, *settings):
    whole = build("whole", *settings)
    rows = [without_times(whole.train()) for _ in range(5)]
    expected = adapter_hash(whole)
    whole.stop()  # there is room for one at a time on a small cluster
    first = build("cut", *settings)
    for _ in range(3):
        first.train()
    saved = first.save_to_path()
    first.train()
    first.stop()
    second = build("cut", *settings)
    second.restore_from_path(saved)
    assert [without_times(second.train()) for _ in range(2)] == rows[3:]
    assert adapter_hash(second) == expected
    second.stop()
    assert sum(row["train/grad_norm"] for row in rows) > 0
    sessions = [run.run_dir / "sessions" / "train.jsonl" for run in (whole, second)]
    assert sessions[0].read_text() == sessions[1].read_text()
    return rows


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name != "all" else ()) for name in CURRICULA],
)
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(build, name):
    rows = check_resuming(build, *CURRICULA[name])
    if "curriculum/stage" in rows[0]:
        assert len({row["curriculum/stage"] for row in rows}) > 1
    if "resampled" in name:
        assert sum(row["sample/num_resampled_groups"] for row in rows) > 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_actors_take_the_tasks_that_one_process_takes_and_resume_to_the_bit(build):
    two = ("env_runners.num_env_runners=2", *CURRICULA["all"])
    rows = check_resuming(build, *two)
    alone = build("alone", *CURRICULA["all"])
    names = ("curriculum/stage", "sample/num_resampled_groups", "sample/spread_share")
    for row in rows:
        metrics = alone.train()
        assert [metrics[name] for name in names] == [row[name] for name in names]
    sessions = [
        run / "sessions" / "train.jsonl" for run in (alone.run_dir, alone.run_dir.parent / "whole")
    ]
    tasks = [
        [json.loads(line)["task_id"] for line in path.read_text().splitlines()] for path in sessions
    ]
    assert tasks[0] == tasks[1]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_resumed_run_with_a_lag_plays_the_groups_that_it_had_chosen(build):
    lagging = ("env_runners.num_env_runners=2", "deterministic=false", "max_adapter_lag=1")
    settings = (*CURRICULA["all"], *lagging)
    first = build("run", *settings)
    for _ in range(2):
        first.train()
    saved = first.save_to_path()
    first.stop()
    state = json.loads((saved / "algorithm.json").read_text())
    chosen = {group_id for own in state["curriculum"]["rounds"] for group_id, _ in own}
    assert len(chosen) >= 4
    second = build("run", *settings)
    second.restore_from_path(saved)
    for _ in range(2):
        second.train()
    second.stop()
    lines = (second.run_dir / "sessions" / "train.jsonl").read_text().splitlines()
    played = {line["group_id"] for line in map(json.loads, lines) if line["iteration"] >= 2}
    assert chosen <= played


def test_rounds_under_way_are_in_the_state_and_are_played_first(make):
    """A run with a lag that is resumed takes the tasks that it had chosen."""
    settings = (*FRONTIER, STAGES[0], "curriculum.window=3")
    curriculum = make(*settings)
    rounds = [curriculum.next_groups(4) for _ in range(3)]
    curriculum.end_round(rounds[0], all_won(rounds[0]))
    state = json.loads(json.dumps(curriculum.state_dict()))
    resumed = make(*settings)
    resumed.load_state_dict(curriculum.position, state)
    assert [list(resumed.next_groups(4)) for _ in range(2)] == [list(each) for each in rounds[1:]]
    assert list(resumed.next_groups(4)) == list(curriculum.next_groups(4))
    assert resumed.next_groups(4)[0].stage == 1


def test_a_checkpoint_of_before_there_were_curricula_has_a_position(make):
    curriculum = make()
    curriculum.load_state_dict(40, None)
    assert positions(curriculum.next_groups(4)) == [40, 41, 42, 43]


def test_the_state_of_an_ordinary_run_is_small(make):
    assert make().state_dict() == {"rounds": [], "difficulty": None, "rates": {}}


# Settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("curriculum.stages=[{num_digits=1}]", "must be two or more, got 1"),
        ("curriculum.promote_at=0.5", "no effect without curriculum.stages"),
        ("curriculum.window=5", "no effect without curriculum.stages"),
        ("curriculum.stages=[{split='train'},{}]", "may not change 'split'"),
        (
            "curriculum.stages=[{data='a'},{}] evaluation.num_tasks=3 evaluation.env_kwargs.data=a",
            "would play the training file 'a'",
        ),
        ("curriculum.sampling=frontier training.group_size=1", "group_size must be >= 2, got 1"),
        (
            "curriculum.sampling=frontier training.algorithm=sft training.group_size=",
            "algorithm 'sft' samples nothing",
        ),
    ],
)
def test_contradictions_are_refused_with_one_message(overrides, message):
    with pytest.raises(SettingsError) as error:
        make_settings(*overrides.split())
    assert message in str(error.value)


def test_a_checkpoint_of_other_stages_is_refused(make):
    plain, staged = make(), make(*STAGES)
    for one, other in ((plain, staged), (staged, plain)):
        with pytest.raises(CheckpointError, match="other curriculum"):
            one.check_fits(other.state_dict())
        one.check_fits(one.state_dict())
        one.check_fits(None)
