"""Evaluation: who plays, what is measured, and going on where it was interrupted."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, nullcontext
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from openai_server import MAX_CONTEXT, serve
from oracle_server import oracle_server
from tiny_run import ANOTHER_MODEL, make_run
from word_problem_files import write_word_problems

from agentpeft.envs import Outcome, SettingsError
from agentpeft.envs.db_bench.tools import TOOLS as DB
from agentpeft.envs.tools.tool_table import ToolCall
from agentpeft.launch.evaluate import main
from agentpeft.launch.evaluating import contest
from agentpeft.launch.evaluating.comparison import bootstrap_interval, compare
from agentpeft.launch.evaluating.contest import find_contestants
from agentpeft.launch.evaluating.evaluation_files import EvaluationFiles
from agentpeft.launch.evaluating.merging import base_settings
from agentpeft.launch.evaluating.players import Methods, ReadyPlayer
from agentpeft.launch.reporting.run_data import to_record
from agentpeft.launch.run.run_folder import find_adapter, read_start
from agentpeft.policies.engines.endpoint_chat import EndpointToolChat, TextChat
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.engines.voting import ReplayChat, VotingEngine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.loop.evaluation import pass_at_k, wilson_interval
from agentpeft.policies.messages import EpisodeRecord, GenerationRequest
from agentpeft.policies.models.load import load_base
from agentpeft.policies.rollout.groups import PlayCounts, PlayedGroup
from agentpeft.policies.settings.config import ModelSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def evaluate(run_dir, tmp_path, capsys):
    """Returns the last line of an evaluation of the run into `tmp_path/out`."""

    def run(*words, config=run_dir):
        words = [str(config), "--output", str(tmp_path / "out"), *map(str, words)]
        status = main(words)
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return json.loads(printed.out.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def server(run_dir):
    with serve(load_base(base_settings(find_adapter(run_dir), None, None))) as server:
        yield server


def episodes(tmp_path, name):
    lines = (tmp_path / "out" / "sessions" / f"{name}.jsonl").read_text("utf-8").splitlines()
    records = [to_record(json.loads(line)) for line in lines]
    return sorted(records, key=lambda record: (record.group_id, record.sample))


def test_the_oracle_succeeds_always_and_random_text_never(evaluate, tmp_path):
    policies = evaluate("--policy", "oracle", "--policy", "random")["policies"]
    assert policies["oracle"]["success_rate"] == 1.0
    assert policies["oracle"]["success_rate_low"] == pytest.approx(wilson_interval(20, 20)[0])
    assert policies["random"]["success_rate"] == 0.0
    assert {r.outcome for r in episodes(tmp_path, "oracle")} == {Outcome.SUCCESS}


@pytest.mark.parametrize("env_id", ["AgentPEFT/DBBench-v0", "AgentPEFT/GSM8K-v0"])
def test_the_oracle_needs_no_model(evaluate, env_id, tmp_path):
    config = tmp_path / "any.toml"
    config.write_text('model = {name = "no/such-model"}', encoding="utf-8")
    overrides = [f"environment.id={env_id}", "evaluation.num_tasks=10"]
    found = evaluate("--policy", "oracle", *overrides, config=config)
    assert found["policies"]["oracle"]["success_rate"] == 1.0


def test_each_task_of_a_file_that_has_fewer_is_played_once(evaluate, tmp_path, caplog):
    caplog.set_level("INFO")
    write_word_problems(tmp_path / "test.jsonl", 7)
    data = f"evaluation.env_kwargs={{data='{tmp_path / 'test.jsonl'}'}}"
    words = ["environment.id=AgentPEFT/GSM8K-v0", "environment.kwargs={}", data]
    words.append("evaluation.num_tasks=20")
    oracle = evaluate("--policy", "oracle", *words)["policies"]["oracle"]
    assert len({row.task_id for row in episodes(tmp_path, "oracle")}) == 7
    assert oracle["num_episodes"] == 7
    assert oracle["success_rate_low"] == pytest.approx(wilson_interval(7, 7)[0])
    assert "evaluation: 7 of num_tasks = 20, as there are no more tasks" in caplog.text
    assert evaluate("--policy", "oracle", *words)["policies"]["oracle"] == oracle  # all is there
    words[-1] = "evaluation.num_tasks=3"
    assert evaluate("--policy", "oracle", *words)["policies"]["oracle"]["num_episodes"] == 3


def test_merged_and_unmerged_adapters_play_alike_and_not_as_the_base(evaluate, tmp_path):
    found = evaluate("--modes", "both", "--policy", "base")
    assert found["agreement"] == {"checkpoint-000002-merged": 1.0}
    says = {
        name: [r.messages for r in episodes(tmp_path, name)]
        for name in ("checkpoint-000002", "checkpoint-000002-merged", "base")
    }
    assert says["checkpoint-000002"] == says["checkpoint-000002-merged"] != says["base"]


def test_results_are_by_skill_and_difficulty_with_intervals(evaluate, tmp_path):
    evaluate("--policy", "base", "environment.kwargs.num_digits=[1, 2]")
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    own, records = results["policies"]["base"], episodes(tmp_path, "base")
    hard = [r for r in records if "2_digits" in r.skills]
    wins = sum(r.outcome is Outcome.SUCCESS for r in hard)
    low, high = wilson_interval(wins, len(hard))
    expected = {"num_episodes": len(hard), "success_rate": wins / len(hard)}
    expected |= {"success_rate_low": low, "success_rate_high": high}
    assert own["by_difficulty"]["2_digits"] == pytest.approx(expected)
    assert own["by_skill"]["addition"]["num_episodes"] == len(records) == 20
    assert own["metrics"]["avg_turns"] == 1.0 and own["metrics"]["avg_tokens"] > 1


def test_several_samples_give_pass_at_k(evaluate, tmp_path):
    found = evaluate("--policy", "base", "evaluation.samples_per_task=4")["policies"]["base"]
    wins = {}
    for record in episodes(tmp_path, "base"):
        wins.setdefault(record.group_id, []).append(record.outcome is Outcome.SUCCESS)
    for k in (1, 2, 4):
        expected = sum(pass_at_k(4, sum(own), k) for own in wins.values()) / 20
        assert found[f"pass_at/{k}"] == pytest.approx(expected)


def test_adapters_are_compared_side_by_side(evaluate, run_dir):
    adapter = find_adapter(run_dir)
    words = ["--adapter", f"one={adapter}", "--adapter", f"two={adapter}", "--policy", "oracle"]
    found = evaluate(*words)
    policies = found["policies"]
    assert list(policies) == ["one", "two", "oracle"] and policies["one"] == policies["two"]
    pairs = {(pair["policy"], pair["other"]): pair for pair in found["comparisons"]}
    assert list(pairs) == [("one", "two"), ("one", "oracle"), ("two", "oracle")]
    same, oracle = pairs["one", "two"], pairs["one", "oracle"]
    assert (same["num_tasks"], same["num_better"], same["num_worse"]) == (20, 0, 0)
    assert oracle["difference"] == pytest.approx(policies["one"]["success_rate"] - 1)
    assert oracle["num_worse"] == round(-20 * oracle["difference"])


def quantiles_of_draws(differences):
    """Returns the exact quantiles of the mean of as many draws, and two more, of -1, 0 and 1."""
    size = len(differences) + 2
    weights = [differences.count(-1) + 0.5, differences.count(0) + 1, differences.count(1) + 0.5]
    chances = np.ones(1)
    for _ in range(size):
        chances = np.convolve(chances, np.array(weights) / size)
    sums = np.arange(-size, size + 1)
    return [sums[np.searchsorted(np.cumsum(chances), share)] / size for share in (0.025, 0.975)]


def test_a_paired_interval_is_a_bootstrap_with_half_a_task_more_in_each_cell():
    rates, others = {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.0, 9: 1.0}, {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}
    found = compare("a", "b", rates, others)
    assert (found.num_tasks, found.num_better, found.num_worse) == (4, 2, 1)
    assert found.difference == pytest.approx(0.125)  # of 1, 0, 0.5 and -1
    assert found == compare("a", "b", rates, others)
    for better, worse, equal in ((2, 0, 1), (0, 0, 50), (35, 0, 15), (8, 35, 118)):
        differences = [1.0] * better + [-1.0] * worse + [0.0] * equal
        exact = quantiles_of_draws(differences)
        one_step = 1 / (len(differences) + 2)
        assert bootstrap_interval([differences]) == pytest.approx(exact, abs=1.01 * one_step)
    # Whole tasks: both 58, one 8, the other 35, neither 60, and half a task more of each: Agresti
    # and Min's interval
    p10, p01, n = 8.5 / 163, 35.5 / 163, 163
    error = ((p10 + p01 - (p10 - p01) ** 2) / n) ** 0.5
    expected = [p10 - p01 + sign * 1.96 * error for sign in (-1, 1)]
    assert bootstrap_interval([differences]) == pytest.approx(expected, abs=0.005)


def test_an_interval_over_seeds_is_wider_where_seeds_differ():
    same, other = [1.0] * 50 + [0.0] * 50, [1.0] * 90 + [0.0] * 10
    low, high = bootstrap_interval([same] * 3)
    assert low < 0.5 * 100 / 102 < high
    assert high - low < 0.8 * np.subtract(*bootstrap_interval([same])[::-1])
    wide = bootstrap_interval([same, other, [0.0] * 100])
    assert wide[1] - wide[0] > 3 * (high - low)


@pytest.mark.parametrize(
    ("num_seeds", "num_tasks", "rate"), [(3, 10, 0.9), (8, 10, 0.9), (8, 18, 0.8)]
)
def test_an_interval_covers_the_rate_however_many_seeds_there_are(num_seeds, num_tasks, rate):
    trials = np.random.default_rng(1).random((40, num_seeds, num_tasks)) < rate
    intervals = [bootstrap_interval(trial.astype(float).tolist()) for trial in trials]
    num_covered = sum(low <= rate <= high for low, high in intervals)
    assert num_covered >= 0.93 * len(intervals)
    assert all(
        low <= mean <= high
        for (low, high), mean in zip(intervals, trials.mean(axis=(1, 2)), strict=True)
    )


@pytest.mark.parametrize(
    ("num_tasks", "num_copies", "num_seeds"), [(25, 8, 1), (50, 4, 1), (100, 1, 3), (100, 1, 5)]
)
def test_an_interval_holds_where_places_or_seeds_share_tasks(num_tasks, num_copies, num_seeds):
    """In 60 trials, of tasks of which 15 % are better, and as many worse."""
    rng, names = np.random.default_rng(0), np.repeat(np.arange(num_tasks), num_copies).astype(str)
    num_covered = num_naive = 0
    for _ in range(60):
        change = rng.choice([1.0, 0.0, -1.0], num_tasks, p=[0.15, 0.7, 0.15])
        others = rng.choice([1.0, 0.0, -1.0], (num_seeds, num_tasks), p=[0.15, 0.7, 0.15])
        agree = rng.random((num_seeds, num_tasks)) < 0.9
        values = np.repeat(np.where(agree, change, others), num_copies, axis=1).tolist()
        low, high = bootstrap_interval(values, [names.tolist()] * num_seeds)
        num_covered += low <= 0 <= high
        low, high = bootstrap_interval(values)
        num_naive += low <= 0 <= high
    assert num_covered >= 54 and num_naive < 54
    distinct = [[f"{seed} {name}" for name in range(len(names))] for seed in range(num_seeds)]
    assert bootstrap_interval(values, distinct) == bootstrap_interval(values)
    for of_seed in distinct:
        of_seed[0] = "the one that all have"
    one_shared = bootstrap_interval(values, distinct)
    assert np.diff(one_shared) == pytest.approx(np.diff(bootstrap_interval(values)), rel=0.15)


def test_it_goes_on_where_it_was_cut_off(evaluate, tmp_path):
    words = ("--policy", "base", "evaluation.samples_per_task=2")
    whole = evaluate(*words)
    path = tmp_path / "out" / "sessions" / "checkpoint-000002.jsonl"
    text = path.read_text("utf-8")
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:40], encoding="utf-8")
    assert evaluate(*words) == whole
    assert sorted(path.read_text("utf-8").splitlines()) == sorted(text.splitlines())


def test_more_tasks_are_added_and_played_ones_kept(evaluate, tmp_path):
    evaluate("--policy", "oracle")
    before = episodes(tmp_path, "oracle")
    assert (
        evaluate("--policy", "oracle", "evaluation.num_tasks=25")["policies"]["oracle"][
            "num_episodes"
        ]
        == 25
    )
    assert episodes(tmp_path, "oracle")[:20] == before


class ToldRunner:
    """Finishes tasks in the order that `order` gives; `failing` ones are dropped."""

    def __init__(self, failing=(), order=sorted, num_before_interrupt=None):
        self.failing, self.order, self.left = failing, order, num_before_interrupt
        self.rounds = []

    def play(self, requests):
        by_position = {request.group_id: request for request in requests}
        self.rounds.append(list(by_position))
        for position in self.order(by_position):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left = None if self.left is None else self.left - 1
            record = EpisodeRecord(position, 0, "t", (), 0, Outcome.SUCCESS, 1.0, 1, 1, ())
            is_dropped = position in self.failing
            yield [
                PlayedGroup(
                    request=by_position[position],
                    version=0,
                    group=None,
                    records=() if is_dropped else (record,),
                    is_dropped=is_dropped,
                    is_left_out=False,
                    task_hash=0,
                    counts=PlayCounts(),
                    last_fault="it is broken" if is_dropped else "",
                    env_s=0.0,
                )
            ]


@pytest.fixture
def evaluate_told(run_dir, tmp_path, monkeypatch):
    """Returns an evaluation of 24 tasks by a `ToldRunner`, and what it has written so far."""
    path = tmp_path / "out" / "sessions" / "oracle.jsonl"

    def run(runner, *words):
        words = ["evaluation.num_tasks=24", *words]
        settings = read_start([str(run_dir / "config.toml")], words).settings
        ready = ReadyPlayer(None, settings, ReplayChat(TextChat(settings.model), 0, 1), {})
        monkeypatch.setattr(contest, "open_runner", lambda _: nullcontext((ready, runner)))
        (oracle,) = find_contestants(settings, [], "adapter", ["oracle"], None, [])
        return contest.evaluate(settings, [oracle], Methods(), tmp_path / "out")["policies"]

    def kept():
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        return [json.loads(line)["group_id"] for line in lines]

    return run, kept


def last_first(positions):
    return sorted(positions, reverse=True)


@pytest.mark.parametrize(
    ("failing", "num_slots", "num_tried"),
    [
        (range(10), 64, None),
        (range(15), 16, None),
        (range(1, 20), 4, None),
        (range(16), 16, 16),
        (range(8), 4, 8),
        (range(24), 64, 24),
    ],
)
def test_an_evaluation_is_given_up_if_all_of_its_first_tasks_fail(
    evaluate_told, failing, num_slots, num_tried
):
    """Those that fail are over before the others."""
    run, kept = evaluate_told
    runner = ToldRunner(
        failing, lambda positions: sorted(positions, key=lambda p: p not in failing)
    )
    play = partial(
        run, runner, "deterministic=false", f"env_runners.max_concurrent_episodes={num_slots}"
    )
    if num_tried is None:
        assert play()["oracle"]["num_episodes"] == 24 - len(failing)
        assert set(kept()) == set(range(24)) - set(failing)
    else:
        with pytest.raises(EngineError, match=f"none of {num_tried} tasks was .*: it is broken"):
            play()
        assert kept() == []


@pytest.mark.parametrize(
    ("deterministic", "num_kept"), [(True, [0, 1, 2, 3]), (False, [23, 22, 21, 20, 19, 18])]
)
def test_what_was_over_is_kept_or_if_deterministic_the_rounds(
    evaluate_told, deterministic, num_kept
):
    run, kept = evaluate_told
    words = f"deterministic={str(deterministic).lower()}", "env_runners.max_concurrent_episodes=4"
    interrupted = ToldRunner(order=last_first, num_before_interrupt=6)
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, *words)
    assert kept() == num_kept
    resumed = ToldRunner(order=last_first)
    assert run(resumed, *words)["oracle"]["num_episodes"] == 24
    assert sorted(kept()) == list(range(24))
    if deterministic:  # each round is as it would have been
        assert [*interrupted.rounds, *resumed.rounds[1:]] == [
            list(range(first, first + 4)) for first in range(0, 24, 4)
        ]


@pytest.mark.slow
def test_a_killed_evaluation_goes_on(run_dir, tmp_path, evaluate):
    words = ["evaluation.num_tasks=300", "env_runners.max_concurrent_episodes=2"]
    command = [sys.executable, str(ROOT / "launch/evaluate.py"), str(run_dir), *words]
    command += ["--output", str(tmp_path / "out")]
    process = subprocess.Popen(command, env=os.environ, stderr=subprocess.DEVNULL)
    path = tmp_path / "out" / "sessions" / "checkpoint-000002.jsonl"
    while not path.is_file() or path.stat().st_size < 2000:
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    played = len(path.read_text("utf-8").splitlines())
    assert 0 < played < 300
    found = evaluate(*words)["policies"]["checkpoint-000002"]
    assert found["num_episodes"] == len({r.group_id for r in episodes(tmp_path, path.stem)})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1"], "is of seed = 0, this is of 1: give another --output"),
        (["--replay", "2"], "is of num_replayed = 0, this is of 2"),
        (["environment.kwargs.num_digits=2"], "is of environment.kwargs"),
    ],
)
def test_an_output_of_another_evaluation_is_refused(
    evaluate, run_dir, tmp_path, capsys, words, message
):
    evaluate("--policy", "oracle", "evaluation.num_tasks=2")
    words = [str(run_dir), "--policy", "oracle", "--output", str(tmp_path / "out"), *words]
    assert main([*words, "evaluation.num_tasks=2"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluation.num_tasks=0", "evaluation.interval=0"], "nothing to play"),
        (["--adapter", "nowhere"], "no adapter_config.json"),
        (["--votes", "0"], "--votes must be >= 1, got 0"),
        (["--votes", "2", "env_runners.temperature=0", "training.algorithm=sft"], "equal samples"),
        (["--endpoint", "http://h:99999/v1", "--endpoint-model", "m"], "must be a URL such as"),
        (["--endpoint", "http://a..b/v1", "--endpoint-model", "m"], "must be a URL such as"),
        (["--endpoint", "http://[::1/v1", "--endpoint-model", "m"], "must be a URL such as"),
        (["--endpoint-options", "[]"], "as a JSON object"),
        (["--endpoint-options", "{"], "invalid value for '--endpoint-options': Expecting"),
        (["--endpoint-model", "m"], "need each other"),
        (["--policy", "oracle", "--policy", "oracle"], "two policies have one name"),
        (["--modes", "neither"], "'neither' is not one of 'adapter', 'merged', 'both'"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(capsys, tmp_path, words, message):
    assert main(["arithmetic_add", "--output", str(tmp_path / "out"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


@pytest.fixture(scope="module")
def unreadable(run_dir, tmp_path_factory):
    """An adapter's folder whose weights are cut off."""
    folder = tmp_path_factory.mktemp("adapters") / "cut"
    shutil.copytree(find_adapter(run_dir), folder)
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["{toml}", "--policy", "base", "model.name=/nowhere", *ANOTHER_MODEL],
        ["{toml}", "--policy", "oracle", "--policy", "base", "model.name=/nowhere", *ANOTHER_MODEL],
        ["{toml}", "--adapter", "{cut}"],
        ["{toml}", "--adapter", "whole={run}", "--adapter", "{cut}"],
        ["{run}", "--modes", "merged", "--adapter", "{cut}"],
        ["{run}", "--policy", "oracle", "environment.kwargs.num_digits=0"],
        ["{run}", "--policy", "oracle", "evaluation.env_kwargs.num_digits=0"],
        ["{toml}", "--policy", "oracle", "environment.id=AgentPEFT/DBench-v0"],
        ["{toml}", "--policy", "oracle", "evaluation.num_tasks=0"],
        ["{toml}", "--policy", "oracle", "env_runners.temperature=-1"],
        ["{toml}", "--policy", "random", "--votes", "-1"],
        ["{toml}", "--endpoint", "no-url", "--endpoint-model", "m"],
    ],
)
def test_a_refused_evaluation_leaves_nothing_and_the_mended_one_plays(
    run_dir, unreadable, tmp_path, capsys, words, monkeypatch
):
    monkeypatch.setattr("agentpeft.policies.engines.openai.MAX_RETRIES", 0)
    output = ["--output", str(tmp_path / "a" / "out")]
    places = {"cut": unreadable, "run": run_dir, "toml": run_dir / "config.toml"}
    assert main([*(word.format(**places) for word in words), *output]) != 0
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "a").exists()
    mended = ["--policy", "oracle", "evaluation.num_tasks=2", "seed=5"]
    assert main([str(run_dir), *mended, *output]) == 0


def test_what_was_played_before_a_failure_is_gone_on_with(
    run_dir, server, tmp_path, evaluate, monkeypatch
):
    words = ["--policy", "oracle", "--endpoint-model", "tiny", "--endpoint"]
    config = run_dir / "config.toml"
    options = ["--endpoint-options", '{"top_p": 0.5}', "--output", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr("agentpeft.policies.engines.openai.MAX_RETRIES", 0)
        assert main([str(config), *words, "http://127.0.0.1:9", *options]) == 1
    before = episodes(tmp_path, "oracle")
    found = evaluate(*words, server.url, config=config)["policies"]
    assert list(found) == ["oracle", "tiny"] and episodes(tmp_path, "oracle") == before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"played": {}, "policies": []}', "\udcff"])
def test_an_output_with_a_foreign_file_is_told_in_one_line(run_dir, tmp_path, capsys, text):
    (tmp_path / "evaluation.json").write_text(text, "utf-8", "surrogateescape")
    assert main([str(run_dir), "--policy", "random", "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "evaluation.json is of no evaluation: give another --output" in error
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_an_output_that_is_a_file_is_told_before_anyone_plays(run_dir, tmp_path, capsys):
    (tmp_path / "file").touch()
    words = ["--policy", "oracle", "--output", str(tmp_path / "file" / "out")]
    assert main([str(run_dir), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"cannot write into {tmp_path / 'file'}")


def test_an_output_that_is_a_run_is_refused_and_its_sessions_stay(run_dir, capsys):
    before = {path: path.read_bytes() for path in run_dir.rglob("*.jsonl")}
    assert main([str(run_dir), "--policy", "oracle", "--output", str(run_dir)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a run's folder: give another" in line
    assert {path: path.read_bytes() for path in run_dir.rglob("*.jsonl")} == before


@pytest.mark.parametrize("is_there", [True, False])
def test_two_evaluations_do_not_write_into_one_folder(run_dir, tmp_path, capsys, is_there):
    """The second one begins while the first one plays, and plays before it or after it."""
    settings, out = read_start([str(run_dir / "config.toml")], []).settings, tmp_path / "out"
    contestants = find_contestants(settings, [], "adapter", ["oracle"], None, [])
    words = [str(run_dir), "--policy", "random", "--output", str(out)]
    if is_there:
        out.mkdir()
    with closing(EvaluationFiles(out, settings, Methods())) as first:
        first.begin(contestants)
        assert main(words) == (2 if is_there else 0)
        said = capsys.readouterr().err
        assert not is_there or "another evaluation is writing into" in said
        record = EpisodeRecord(0, 0, "t", (), 0, Outcome.SUCCESS, 1.0, 1, 1, ())
        if is_there:
            first.append(contestants[0], [record])
        else:
            with pytest.raises(SettingsError, match="another evaluation has written into"):
                first.append(contestants[0], [record])
            with pytest.raises(SettingsError, match="another evaluation has written into"):
                first.append(contestants[0], [record])
    assert main(words) == 0
    names = {path.stem for path in out.glob("sessions/*")} & {"random", "oracle"}
    assert names == {"random", *(["oracle"] * is_there)}


def test_evaluations_of_one_second_have_a_folder_each(run_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AGENTPEFT_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setattr(time, "strftime", lambda _: "20260101-120000")
    words = [str(run_dir), "--policy", "oracle", "output.dir=new", "evaluation.num_tasks=2"]
    assert [main(words), main(words)] == [0, 0]
    folders = sorted(tmp_path.glob("new/evaluations/*/*"))
    assert [folder.name for folder in folders] == ["20260101-120000", "20260101-120000-2"]
    assert all((folder / "results.json").is_file() for folder in folders)

    def fail(*_):
        raise SettingsError("nothing is played")

    monkeypatch.setattr(contest, "evaluate", fail)
    assert main(words) == 2
    assert sorted(tmp_path.glob("new/evaluations/*/*")) == folders
    (tmp_path / "file").touch()
    assert main([*words, "output.dir=file"]) == 2
    assert "output.dir: cannot write into" in capsys.readouterr().err


def test_an_endpoint_plays_as_the_same_model_here(evaluate, server, tmp_path):
    found = evaluate("--policy", "base", "--endpoint", server.url, "--endpoint-model", "tiny")[
        "policies"
    ]
    local, served = (episodes(tmp_path, name) for name in ("base", "tiny"))
    assert [r.messages for r in served] == [r.messages for r in local]
    assert [r.num_tokens for r in served] == [r.num_tokens for r in local]
    assert found["tiny"] == found["base"]
    assert server.bodies[-1]["max_tokens"] == 4 and server.bodies[-1]["temperature"] == 0


def test_an_endpoint_gets_its_options_and_is_asked_again_when_busy(evaluate, server):
    server.num_busy = 2
    words = ["--policy", "oracle", "--endpoint", server.url, "--endpoint-model", "other"]
    evaluate(*words, "--endpoint-options", '{"top_p": 0.5}', "evaluation.num_tasks=3")
    assert (server.bodies[-1]["model"], server.bodies[-1]["top_p"]) == ("other", 0.5)
    assert server.num_busy == 0


def test_an_endpoint_plays_by_calls_of_tools(evaluate, tmp_path):
    words = ["environment.id=AgentPEFT/DBBench-v0", "evaluation.num_tasks=4"]
    config = tmp_path / "any.toml"
    config.write_text('model = {name = "no/such-model", system_prompt = "Be good."}', "utf-8")
    evaluate("--policy", "oracle", 'environment.kwargs={prompt="tools"}', *words, config=config)
    calls = {
        record.messages[1][1]: [DB.find_call(text) for text in actions_of(record)]
        for record in episodes(tmp_path, "oracle")
    }
    shutil.rmtree(tmp_path / "out")
    with oracle_server(calls) as server:
        own = ["--endpoint", server.url, "--endpoint-model", "m", "--endpoint-tools"]
        found = evaluate(*own, *words, config=config)["policies"]["m"]
    assert (found["success_rate"], found["num_episodes"]) == (1.0, 4)
    for record in episodes(tmp_path, "m"):
        assert [json.loads(text)["tool_calls"][0]["id"] for text in actions_of(record)] == [
            f"call-{number}" for number in range(record.num_turns)
        ]
    bodies = [json.loads(text) for text in server.bodies]
    assert all(body["tools"] == DB.to_openai() for body in bodies)
    assert all(body["messages"][0] == {"role": "system", "content": "Be good."} for body in bodies)
    *_, said, answer = next(body["messages"] for body in bodies if len(body["messages"]) > 3)
    assert said["tool_calls"][0]["id"] == answer["tool_call_id"] == "call-0"
    assert (said["role"], answer["role"]) == ("assistant", "tool") and answer["content"]


def actions_of(record):
    return [text for role, text in record.messages if role == "assistant"]


def test_what_an_endpoint_calls_amiss_is_told_in_words():
    chat = EndpointToolChat(ModelSettings(), DB)
    run = {"name": "execute_sql", "arguments": '{"sql": "SELECT 1"}'}
    cut = {"name": "execute_sql", "arguments": '{"sql": "SEL'}
    both = [{"id": f"c{i}", "type": "function", "function": f} for i, f in enumerate((run, cut))]
    assert [action.text for action in chat.find_actions("")] == [""]  # of a context that is full
    nameless = {"content": "", "tool_calls": [{"function": run}]}
    kept = json.loads(chat.decode(chat.encode_message(nameless)))["tool_calls"]
    assert kept == [{"id": "call-0", "type": "function", "function": run}]
    ids, said = chat.begin("Count."), []
    for message in (
        {"role": "assistant", "content": None, "tool_calls": both, "refusal": None},
        {"role": "assistant", "content": "I wonder.", "tool_calls": None},
        {"role": "assistant", "content": None},
    ):
        turn = chat.encode_message(message)
        found = chat.find_actions(chat.decode(turn))
        said += [(action.text, action.problem) for action in found]
        ids = np.concatenate([ids, turn])
        ids = np.concatenate([ids, chat.extend(ids, *(f"{len(said)}{a.text}" for a in found))])
    action = DB.to_action(ToolCall("execute_sql", {"sql": "SELECT 1"}))
    assert said[0] == (action, None) and said[2:] == [("", DB.advice)] * 2
    assert said[1][0] == "" and "arguments" in said[1][1]
    empty = {"function": {"name": "execute_sql", "arguments": "{}"}}
    assert chat.to_messages(ids) == [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "", "tool_calls": [both[0], both[1] | empty]},
        {"role": "tool", "content": f"2{action}", "tool_call_id": "c0"},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "I wonder."},
        {"role": "user", "content": "3"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "4"},
    ]


def test_a_conversation_beyond_the_endpoints_context_ends_there(evaluate, server, tmp_path):
    words = [
        "--endpoint",
        server.url,
        "--endpoint-model",
        "tiny",
        "environment.id=AgentPEFT/DBBench-v0",
    ]
    evaluate(*words, "--policy", "oracle", "environment.kwargs=", "evaluation.num_tasks=2")
    records = episodes(tmp_path, "tiny")
    assert {r.outcome for r in records} == {Outcome.CONTEXT_LIMIT}
    assert all(len(r.messages[0][1]) > MAX_CONTEXT for r in records)


def test_an_endpoint_gets_the_system_prompt_and_the_variables_of_its_template(
    evaluate, server, tmp_path
):
    server.bodies.clear()
    config = tmp_path / "any.toml"
    config.write_text(
        'model = {name = "no/such-model", system_prompt = "Be good.", '
        "chat_template_kwargs = {enable_thinking = false}}",
        encoding="utf-8",
    )
    words = ["--endpoint", server.url, "--endpoint-model", "tiny", "evaluation.num_tasks=2"]
    evaluate(*words, "--policy", "oracle", config=config)
    system = {"role": "system", "content": "Be good."}
    assert all(body["messages"][0] == system for body in server.bodies)
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in server.bodies)
    for name in ("tiny", "oracle"):
        assert episodes(tmp_path, name)[0].messages[0] == ("system", "Be good.")


def test_voters_agree_on_actions_and_replayed_successes_have_no_thoughts():
    model = ModelSettings(system_prompt="Be good.")
    messages = (("system", "Be good."), ("user", "1+1="), ("assistant", "<think>3?</think>\n2"))
    record = EpisodeRecord(0, 0, "a", (), 0, Outcome.SUCCESS, 1.0, 1, 1, messages)
    chat = ReplayChat(TextChat(model), num_examples=1)
    chat.add([record])
    text = chat.decode(chat.begin("Now."))
    assert text.startswith("Earlier tasks that were solved:\n\nuser: 1+1=\nassistant: 2\n\nThe")
    said = ["<think>a</think>1", "<think>b</think>2", "<think>c</think> 2", "<think>2"]
    script = {f"s#{voter}": [text] for voter, text in enumerate(said)}
    engine = VotingEngine(ScriptedEngine(TextChat(), script), chat, len(said), 1.0)
    engine.update_sessions(opened=["s"])
    request = GenerationRequest("s", chat.begin("Now."), (0,))
    assert chat.decode(asyncio.run(engine.generate(request)).token_ids) == said[1]


def test_an_endpoint_that_does_not_answer_is_said(run_dir, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("agentpeft.policies.engines.openai.MAX_RETRIES", 0)
    words = ["--endpoint", "http://127.0.0.1:9/v1", "--endpoint-model", "m", "--output"]
    assert main([str(run_dir), *words, str(tmp_path / "out")]) == 1
    assert (
        "endpoint http://127.0.0.1:9/v1: Connection error. Is the server running?"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, "text/html", "<html>hello</html>"), "answers no chat completion"),
        ((200, "application/json", "<html>"), "answers no JSON"),
        ((200, "application/json", '{"a": 1}'), "answers no chat completion"),
        ((200, "application/json", "[]"), "answers no chat completion"),
        ((401, "application/json", '{"error": "no"}'), "the key is taken from OPENAI_API_KEY"),
        ((200, "application/json", None), "none of 4 tasks was played to its end"),  # it hangs
    ],
)
def test_an_endpoint_that_answers_something_else_ends_in_a_line(
    run_dir, capsys, tmp_path, monkeypatch, reply, message
):
    status, kind, answer = reply

    class Odd(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            if answer is None:
                is_over.wait(60)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write((answer or "").encode())

        def log_message(self, *args):
            pass

    monkeypatch.setattr("agentpeft.policies.engines.openai.MAX_RETRIES", 0)
    is_over = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as odd:
        threading.Thread(target=odd.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{odd.server_port}/v1"
        words = ["--endpoint", url, "--endpoint-model", "m", "--output", str(tmp_path / "out")]
        limits = ["evaluation.num_tasks=4", "env_runners.episode_timeout_s=1"]
        assert main([str(run_dir), *words, *limits]) == 1
        is_over.set()
        odd.shutdown()
    (line,) = [text for text in capsys.readouterr().err.splitlines() if "error:" in text]
    assert message in line


def test_replayed_successes_stand_before_the_prompt(evaluate, server):
    server.bodies.clear()
    words = [
        "--replay",
        "1",
        "--endpoint",
        server.url,
        "--endpoint-model",
        "tiny",
        "--policy",
        "oracle",
    ]
    evaluate(*words, "evaluation.num_tasks=30")
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    assert not prompts[0].startswith("Earlier tasks") and len(prompts) == 30
    solved = [
        text for text in prompts if text.startswith("Earlier tasks that were solved:\n\nuser: ")
    ]
    assert all(text.count("assistant: ") == 1 for text in solved)


def test_the_last_successes_of_each_group_are_replayed(tmp_path, evaluate):
    evaluate("--policy", "oracle", "evaluation.num_tasks=5")
    records = episodes(tmp_path, "oracle")
    chat = ReplayChat(TextChat(), num_examples=2, num_groups=2)
    chat.add(records)
    chat.begin("Now.")
    ((first, second),) = chat.variants.values()
    for ids, replayed in ((first, (2, 4)), (second, (1, 3))):
        text = TextChat().decode(ids)
        positions = [text.index(records[i].messages[0][1]) for i in replayed]
        assert positions == sorted(positions) and text.count("assistant: ") == 2
        assert text.endswith("The present task:\n\nNow.")


def test_the_most_frequent_action_of_the_voters_is_played(evaluate, server, tmp_path):
    server.bodies.clear()
    words = ["--votes", "5", "--endpoint", server.url, "--endpoint-model", "tiny"]
    evaluate(*words, "--policy", "oracle", "evaluation.num_tasks=4")
    assert len(server.bodies) == 4 * 5
    assert {body["temperature"] for body in server.bodies} == {1.0}
    assert len({body["seed"] for body in server.bodies}) == 4 * 5
    assert len(episodes(tmp_path, "tiny")) == 4
