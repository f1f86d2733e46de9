"""The command `lifelong`: its results, going on after a kill, its errors."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from qwen_model import save_qwen
from safetensors.numpy import load_file, save_file
from tiny_run import seal

from agentpeft.apps.lifelong import lifelong_study
from agentpeft.apps.lifelong.combine_adapters import combine_adapters
from agentpeft.apps.lifelong.course import TooFewStagesError, read_folder
from agentpeft.apps.lifelong.lifelong import main
from agentpeft.apps.lifelong.lifelong_study import Study, run_study
from agentpeft.apps.lifelong.methods import METHODS, NUM_EXAMPLES
from agentpeft.apps.lifelong.stage_runs import make_run_settings
from agentpeft.apps.lifelong.study_engine import SHARED, with_room
from agentpeft.apps.lifelong.task_sequence import FOLDER, read_sequence
from agentpeft.envs import Outcome, SettingsError
from agentpeft.envs.db_bench.skills import SKILLS as SQL_SKILLS
from agentpeft.envs.os_interaction.skills import SKILLS as SHELL_SKILLS
from agentpeft.launch.evaluating.adapter_bank import read_bank
from agentpeft.launch.reporting.run_data import read_rows
from agentpeft.launch.run.run_folder import find_adapter, lock_run, read_start
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.checkpointing.checkpoints import write_config
from agentpeft.policies.checkpointing.reading import read_config
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.loop.evaluation import warn_unless_held_out
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.open_adapters import merge_adapter, open_adapter
from agentpeft.policies.rollout.scripted_play import make_text_env
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.named_files import hash_named

ROOT = Path(__file__).parents[2]
TINY = """
experiment = "tiny"
deterministic = true
entry_rise = -1
num_threads = 1
tiny = {hidden_size = 32, num_layers = 2}
lora = {rank = 4, alpha = 8.0}
warm_start = {num_steps = 40, batch_size = 16, lr = 1e-2}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 3, num_groups = 4, group_size = 4, lr = 2e-2}
evaluation = {num_tasks = 10, env_kwargs = {split = "test"}}
output = {checkpoint_interval = 1}
stages = [
    {name = "sums"},
    {name = "differences", kwargs = {operations = ["subtraction"]}},
    {name = "backwards", kwargs = {format = "reversed"}},
]
[environment.kwargs]
num_digits = 1
prompt = "named"
split = "train"
reward = {format_bonus = 0.5}
[quick]
training = {num_iterations = 1}
"""
CHAIN = "sequential,replay_20,bank"


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


def learn(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out.splitlines()[-1])


def set_outcomes(folder, outcome):
    for path in (folder / "sessions").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lines = [json.dumps({**row, "outcome": outcome}) + "\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_built_in_sequences_are_short_and_named_after_their_experiment(path, caplog):
    sequence = read_sequence(path.stem)
    assert sequence.settings.experiment == path.stem
    assert read_sequence(path.stem, is_quick=True).stages == sequence.stages
    warn_unless_held_out(sequence.settings)
    assert not caplog.records
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines - len(sequence.stages) <= 20
    assert Study(sequence, tuple(METHODS)).chosen.keys() == METHODS.keys()
    assert sequence.order(0) == sequence.stages
    assert len({sequence.order(number) for number in range(4)}) > 1


def test_lab51_has_a_stage_for_each_skill_of_both_environments():
    sequence = read_sequence("lab51")
    assert len(sequence.stages) == 51
    assert sequence.stages == (*SQL_SKILLS, *SHELL_SKILLS)
    env = make_text_env(sequence.settings.environment.id, sequence.settings.held_out_kwargs)
    tasks = [env.task_source.draw(np.random.default_rng(seed)) for seed in range(60)]
    env.close()
    for task in tasks:
        stage, *skills = task.skills
        assert stage in skills
        assert task.task_id.startswith(f"{stage}/")


def test_db22_has_a_stage_for_each_sql_skill():
    assert read_sequence("db22").stages == tuple(SQL_SKILLS)


def test_a_base_gives_the_stages_another_model_with_its_settings(tmp_path):
    plain = read_sequence("db9")
    own = read_sequence(
        "db9", ["base=db_bench_coder_05b", "entry_rise=-1", "training.num_groups=8"]
    )
    config = read_start(["db_bench_coder_05b"], []).settings
    assert own.settings.experiment == "db9-db_bench_coder_05b"
    assert (own.stages, own.entry_rise) == (plain.stages, -1.0)
    for section in ("model", "lora", "learners", "env_runners", "warm_start"):
        assert getattr(own.settings, section) == getattr(config, section)
    changed = {"num_iterations": plain.settings.training.num_iterations, "num_groups": 8}
    assert own.settings.training == config.training.model_copy(update=changed)
    assert own.settings.evaluation == plain.settings.evaluation
    first, *_ = own.settings.environment.kwargs["sources"]
    assert first["kwargs"] == {"split": "train", "skills": ["where_single_condition"]}
    assert not own.settings.deterministic
    file = tmp_path / "mine.toml"
    file.write_text('base = "db_bench_coder_05b"\n[training]\nlr = 0.5\n', encoding="utf-8")
    mine = read_sequence("db9", [f"base={file}"]).settings
    assert (mine.experiment, mine.training.lr) == ("db9-mine", 0.5)


def test_runs_with_vllm_play_in_the_studys_process_by_its_engine():
    shared = read_sequence("db22").settings
    settings = make_run_settings(shared, "base", "run")
    assert settings.env_runners.shared_engines == SHARED
    assert settings.env_runners.num_env_runners == 0
    assert settings.learners == shared.learners
    with pytest.raises(SettingsError, match="'study' is the engine of a study"):
        make_player(settings)
    other = make_run_settings(shared, "other", "run", has_own_engine=True)
    assert other.env_runners == shared.env_runners
    assert with_room(shared).env_runners.max_context_tokens == (1 + NUM_EXAMPLES) * 2048


def test_the_sources_of_a_mixture_are_stages(tmp_path, capsys):
    path = tmp_path / "mixed.toml"
    text = """
    experiment = "mixed"
    environment = {id = "AgentPEFT/Mixture-v0", kwargs = {split = "train", sources = [
        {name = "sums", id = "AgentPEFT/Arithmetic-v0", kwargs = {num_digits = 1, split = "test"}},
        {name = "stories", id = "AgentPEFT/GSM8K-v0"}]}}
    """
    path.write_text(text, encoding="utf-8")
    sequence = read_sequence(str(path))
    assert sequence.stages == ("sums", "stories")
    sums, stories = sequence.settings.environment.kwargs["sources"]
    assert sums["kwargs"] == {"num_digits": 1, "split": "train"}
    assert (stories["id"], stories["kwargs"]) == ("AgentPEFT/GSM8K-v0", {"split": "train"})
    tables = """
    experiment = "mixed"
    [[environment]]
    name = "sums"
    id = "AgentPEFT/Arithmetic-v0"
    kwargs = {num_digits = 1, split = "train"}
    [[environment]]
    name = "stories"
    id = "AgentPEFT/GSM8K-v0"
    kwargs = {split = "train"}
    """
    path.write_text(tables, encoding="utf-8")
    assert read_sequence(str(path)) == sequence
    path.write_text(text.replace("sources", "weights = [1, 2], sources"), encoding="utf-8")
    assert main([str(path), "--output", str(tmp_path / "out")]) == 2
    assert "leave out environment.kwargs.weights" in capsys.readouterr().err


def test_orders_are_all_there_are_and_none_comes_twice(tiny):
    sequence = read_sequence(str(tiny))
    orders = [sequence.order(number) for number in range(6)]
    assert orders[0] == sequence.stages
    assert len(set(orders)) == 6
    assert sequence.with_stages(["sums", "backwards"]).order(1) == ("backwards", "sums")
    with pytest.raises(SettingsError, match="3 stages have 6 orders"):
        sequence.order(6)


@pytest.mark.long
@pytest.mark.slow
def test_orders_that_differ_in_dropped_stages_alone_are_one_course(tiny, tmp_path):
    sequence, out = read_sequence(str(tiny), is_quick=True), tmp_path / "out"
    assert len(list(run_study(Study(sequence, ["base"]), out, StopSignals()))) == 1
    for stage in sequence.stages:
        set_outcomes(out / "seed-0/evaluations/base" / stage, Outcome.FAILURE)
        ends = Outcome.FAILURE if stage == "sums" else Outcome.SUCCESS
        set_outcomes(out / f"seed-0/evaluations/expert-{stage}" / stage, ends)
    (out / "plan.json").unlink()
    study = Study(replace(sequence, entry_rise=0.5), ["base"], num_orders=6)
    courses = list(run_study(study, out, StopSignals()))
    assert {each.dropped for each in courses} == {("sums",)}
    two = list(run_study(replace(study, num_orders=2), out, StopSignals()))
    assert [each.stages for each in two] == [each.stages for each in courses]
    assert sorted(each.stages for each in courses) == [
        ("backwards", "differences"),
        ("differences", "backwards"),
    ]


@pytest.mark.slow
@pytest.mark.long
def test_every_method_gives_its_matrix_and_leaves_its_files(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    summary = learn(capsys, tiny, "--output", out)
    stages = summary["stages"]
    assert summary["methods"].keys() == METHODS.keys()
    for name, own in summary["methods"].items():
        rows = 1 if name in ("joint", "expert") else len(stages)
        assert np.shape(own["matrix"]) == (rows, len(stages))
        assert own["acc"] == pytest.approx(np.mean(own["matrix"][-1]))
    matrix = {name: np.array(own["matrix"]) for name, own in summary["methods"].items()}
    base = [summary["base"][stage] for stage in stages]
    assert (matrix["base"] == base).all()
    assert matrix["expert"][0].tolist() == [summary["expert"][stage] for stage in stages]
    for i, row in enumerate(matrix["bank"]):
        assert row.tolist() == [*matrix["expert"][0][: i + 1], *base[i + 1 :]]
    first = [name for name, method in METHODS.items() if method.shares_first_stage]
    assert len(first) == 5
    assert all((matrix[name][0] == matrix["average"][0]).all() for name in first)
    assert summary["methods"]["bank"]["bwt"] == 0.0
    assert summary["methods"]["joint"]["bwt"] is None
    old = {name: own["kl_old"] for name, own in summary["methods"].items()}
    new = {name: own["kl_new"] for name, own in summary["methods"].items()}
    unknown = {"in_context", "router", "expert", "joint"}
    assert {name for name in old if old[name] is None} == unknown
    assert old["base"] == new["base"] == old["bank"] == 0.0
    assert min(new[name] for name in new.keys() - unknown - {"base"}) > 0
    drift = json.loads((out / "seed-0/drift/base--expert-differences/differences.json").read_text())
    assert drift["kl"] > 0
    assert drift["num_tokens"] >= 20  # ten tasks, twice
    merged = out / "seed-0/merged/order-0.average-2"
    merged_bytes = sum(file.stat().st_size for file in merged.iterdir())
    assert summary["methods"]["average"]["bytes"] == merged_bytes
    assert merged_bytes > 2 * summary["methods"]["sequential"]["bytes"]
    assert 0 <= summary["methods"]["router"]["router_accuracy"] <= 1
    assert tuple(read_bank(out / "seed-0/bank/order-0").adapters) == tuple(stages)

    page = (out / "lifelong.html").read_text(encoding="utf-8")
    assert all(f"<caption>{name}</caption>" in page for name in METHODS)
    assert (out / "matrices.png").read_bytes().startswith(b"\x89PNG")
    with (out / "matrix.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(each.size for each in matrix.values())
    assert json.loads((out / "results.json").read_text())["methods"] == summary["methods"]
    done = {path: path.stat().st_mtime_ns for path in (out / "seed-0" / "runs").rglob("*")}
    again = learn(capsys, tiny, "--output", out)
    assert again == summary
    assert done == {path: path.stat().st_mtime_ns for path in (out / "seed-0" / "runs").rglob("*")}


@pytest.mark.long
@pytest.mark.slow
def test_a_study_killed_in_each_stage_goes_on_to_the_same_matrices(tiny, tmp_path, capsys):
    whole = learn(capsys, tiny, "--methods", CHAIN, "--output", tmp_path / "whole")
    words = [
        sys.executable,
        "-m",
        "agentpeft.apps.lifelong.lifelong",
        str(tiny),
        "--methods",
        CHAIN,
    ]
    out = tmp_path / "killed"
    runs = [f"expert-{stage}" for stage in ("sums", "differences", "backwards")]
    for name in ("sequential", "replay_20"):
        runs += [f"order-0.{name}-1-differences", f"order-0.{name}-2-backwards"]
    marks = [f"runs/{name}/checkpoints/checkpoint-*" for name in runs]
    marks.append("evaluations/order-0.replay_20-2-backwards/sums")
    for mark in marks:
        process = subprocess.Popen(
            [*words, "--output", str(out)], cwd=ROOT, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while not any((out / "seed-0").glob(mark)):
            assert process.poll() is None, f"it ended before {mark}"
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    again = learn(capsys, tiny, "--methods", CHAIN, "--output", out)
    assert again["methods"].keys() == whole["methods"].keys()
    for name, own in whole["methods"].items():
        assert again["methods"][name]["matrix"] == own["matrix"]
        assert again["methods"][name]["tokens"] == own["tokens"]
    for name in runs:
        path = Path("seed-0", "runs", name, "checkpoints/checkpoint-000003/adapter")
        file = path / "adapter_model.safetensors"
        ours, theirs = (load_file(tmp_path / side / file) for side in ("whole", "killed"))
        assert all((ours[key] == theirs[key]).all() for key in ours)
        assert any(weight.any() for key, weight in ours.items() if "lora_B" in key)


REAL = [
    *("db9", "base=db_bench_coder_05b", "entry_rise=-1", "--stages", "where,insert", "--no-kl"),
    *("model.dtype=float32", "lora.rank=2", "num_threads=1", "env_runners.max_new_tokens=4"),
    *("env_runners.num_gpus_per_env_runner=0", "learners.num_gpus_per_learner=0"),
    *("training.num_iterations=1", "training.num_groups=2", "training.group_size=2"),
    *("training.num_minibatches=1", "evaluation.num_tasks=2"),
]


@pytest.mark.slow
def test_a_real_models_study_is_run_and_resumed(tmp_path, capsys):
    model, out = save_qwen(tmp_path / "model"), tmp_path / "out"
    words = [*REAL, f"model.name={model}", "env_runners.num_env_runners=0", "--output", out]
    words += ["env_runners.engine=transformers", "env_runners.kv_cache_gib="]
    first = learn(capsys, *words, "--methods", "sequential")
    assert first["stages"] == ["where", "insert"]
    summary = learn(capsys, *words, "--methods", "sequential,replay_5")
    for own in summary["methods"].values():
        assert np.shape(own["matrix"]) == (2, 2)
    assert summary["methods"]["sequential"] == first["methods"]["sequential"]
    runs = {path.name for path in (out / "seed-0/runs").iterdir()}
    chains = {f"order-0.{name}-1-insert" for name in ("sequential", "replay_5")}
    assert runs == {"expert-where", "expert-insert", *chains}
    run = read_config(out / "seed-0/runs/order-0.sequential-1-insert")
    assert (run.model.name, run.training.lr) == (str(model), 1e-4)
    records = read_folder(out / "seed-0/evaluations/order-0.sequential-1-insert/insert")
    assert len(records) == 2
    assert all("MySQL" in record.messages[0][1] for record in records)


@pytest.mark.long
@pytest.mark.slow
def test_one_vllm_serves_all_runs_and_evaluations_of_a_study(vllm, tmp_path, capsys):
    model, out = save_qwen(tmp_path / "model", hidden_size=128), tmp_path / "out"
    words = [*REAL, f"model.name={model}", "env_runners.kv_cache_gib=0.2", "--output", out]
    summary = learn(capsys, *words, "--methods", "router")
    assert np.shape(summary["methods"]["router"]["matrix"]) == (2, 2)
    runs = sorted((out / "seed-0/runs").iterdir())
    assert [run.name for run in runs] == ["expert-insert", "expert-where"]
    for run in runs:
        rows = read_rows(run / "metrics.jsonl")
        (proof,) = [row["delivery/probe_max"] for row in rows if "delivery/probe_max" in row]
        assert proof < 1e-3
    with pytest.raises(SettingsError, match="is the engine of a study"):
        make_player(read_config(runs[0]))  # it has ended
    served = out / "seed-0/evaluations/order-0.router/insert"
    assert len(read_folder(served)) == 2


@pytest.mark.slow
@pytest.mark.long
def test_courses_of_several_seeds_have_intervals_and_stages_may_be_left_out(tiny, tmp_path, capsys):
    summary = learn(
        capsys, tiny, "--quick", "--methods", "base,sequential", "--stages", "sums,backwards",
        "--seeds", 2, "--orders", 2, "--no-kl", "--output", tmp_path / "out",
    )  # fmt: skip
    assert summary["methods"]["sequential"]["kl_old"] is None
    assert not (tmp_path / "out/seed-0/drift").exists()
    assert len(summary["courses"]) == 4
    assert set(summary["stages"]) == {"sums", "backwards"}
    own = summary["methods"]["sequential"]
    assert own["acc_low"] <= own["acc"] <= own["acc_high"]
    assert summary["comparisons"]["base"]["num_pairs"] == 2


@pytest.mark.slow
@pytest.mark.long
def test_examples_in_the_prompt_are_no_evaluated_tasks_again(tiny, tmp_path, capsys, caplog):
    text = TINY.replace('split = "train"', "").replace(', env_kwargs = {split = "test"}', "")
    tiny.write_text(text.replace("num_digits = 1", "num_digits = 9"), encoding="utf-8")
    out = tmp_path / "out"
    learn(capsys, tiny, "--quick", "--methods", "in_context", "--output", out)
    assert "evaluation is not held out" in caplog.text
    for stage in ("sums", "differences", "backwards"):
        evaluated, examples = (
            {record.task_id for record in read_folder(out / "seed-0" / part / stage)}
            for part in ("evaluations/base", "examples")
        )
        assert (len(evaluated), len(examples)) == (10, 64)
        assert not evaluated & examples


@pytest.mark.long
@pytest.mark.slow
def test_a_stage_that_its_expert_does_not_raise_is_left_out(tiny, tmp_path, capsys):
    tiny.write_text(TINY.replace("entry_rise = -1", "entry_rise = 1.0"), encoding="utf-8")
    status = main([str(tiny), "--quick", "--methods", "base", "--output", str(tmp_path / "out")])
    assert status == 1
    assert "of 3 stages 0 are raised by their experts by entry_rise (100 points)" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arith6"], "unknown sequence 'arith6'; did you mean 'arith5'"),
        (["nowhere.toml"], "cannot read settings from 'nowhere.toml'"),
        (["arith5", "training.lrr=1"], "unknown setting 'training.lrr'"),
        (["{other}"], "warm_start.num_steps makes the one base of all"),
        (["db9", "curriculum.sampling=frontier"], "curriculum.sampling must be 'uniform' and"),
        (["arith5", "training.dynamic_sampling=true"], "training.dynamic_sampling false"),
        (["arith5", "model.adapter=somewhere"], "leave out model.adapter"),
        (
            ["db9", "base=db_bench_coder"],
            "unknown config 'db_bench_coder'; did you mean 'db_bench_co",
        ),
        (
            ["db9", "base=gsm8k_coder_15b"],
            "plays AgentPEFT/GSM8K-v0, and the stages of 'db9' are of",
        ),
        (["db9", "entry_rise=2"], "entry_rise must be a number from -1 to 1, got 2"),
        (["arith5", "evaluation.num_tasks=0"], "evaluation.num_tasks must be above 0"),
        (["arith5", "training.shuffle_rewards=true"], "method 'sft': "),
        (["arith5", "lora.rank=0"], "lora.rank must be >= 1"),
        (["arith5", "--methods", "sequentiel"], "unknown method 'sequentiel'; did you mean"),
        (["arith5", "--methods", ","], "names are written NAME,NAME, got ','"),
        (["arith5", "--stages", "modulo"], "a sequence has two stages or more, got modulo"),
        (["arith5", "--stages", "modulo,mod"], "unknown stage 'mod'"),
        (["arith5", "--orders", "121"], "5 stages have 120 orders, got --orders 121"),
        (["arith5", "--orders", "0"], "orders and seeds must be >= 1, got 0 and 1"),
        (["{file}", "--quick"], "has no section quick"),
        (
            ["db9", 'env_runners.agent={{class="agentpeft.apps.gateway.agent:Gateway"}}'],
            "method 'in_context' writes prompts, which env_runners.agent does",
        ),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_written(words, message, tmp_path, capsys):
    plain = tmp_path / "plain.toml"
    plain.write_text(TINY.partition("[quick]")[0], encoding="utf-8")
    other, out = tmp_path / "other.toml", tmp_path / "out"
    model = 'model = {name = "somewhere"}'
    lines = [model if line.startswith("tiny") else line for line in TINY.splitlines()]
    other.write_text("\n".join(lines), encoding="utf-8")
    words = [word.format(file=plain, other=other) for word in words]
    assert main([*words, "--output", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("stages = [", "stage = ["), "has no [[stages]]: a sequence has two or more"),
        (('{name = "sums"}', "{}"), "stage 0 is a table with a name"),
        (('"sums"', '"a b"'), "stage 0 is a table with a name"),
        (('"sums"', '"sums", kwarg = 1'), "stage 'sums' has an unknown key 'kwarg'"),
        (("entry_rise = -1", 'entry_rise = "x"'), "entry_rise must be a number from -1 to 1"),
        (("entry_rise = -1", "entry_rise = 2"), "entry_rise must be a number from -1 to 1, got 2"),
        (("[environment.kwargs]", "[[environment]]"), "table 0 has an unknown key 'num_digits'"),
        (('{format = "reversed"}', "3"), "environment.kwargs: input should be a valid dictionary"),
        (('{name = "sums"}', '{name = "sums", id = 3}'), "environment.id: input should be a valid"),
        (("entry_rise", "curriculum.stages = [{}, {}]\nentry_rise"), "write [[stages]]"),
        (("num_tasks = 10", "num_tasks = 0"), "evaluation.num_tasks must be above 0"),
        (('"backwards"', '"sums"'), "two sources have one name"),
        (('"subtraction"', '"subtracting"'), "unknown operation 'subtracting'"),
    ],
)
def test_a_sequence_that_cannot_be_is_refused(tiny, tmp_path, change, message, capsys):
    tiny.write_text(TINY.replace(*change), encoding="utf-8")
    assert main([str(tiny), "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_folder_of_another_study_is_refused(tiny, tmp_path, capsys):
    words = [str(tiny), "--quick", "--methods", "base", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    assert main([*words, "training.lr=1e-3"]) == 2
    error = capsys.readouterr().err
    assert "is of another study: its training.lr is" in error
    assert "give another --output" in error


@pytest.mark.slow
@pytest.mark.long
def test_a_study_that_was_refused_binds_nobody(tiny, tmp_path, capsys):
    words = [str(tiny), "--quick", "--methods", "base", "--output", str(tmp_path / "out")]
    assert main([*words, 'lora.target_modules=["nowhere"]']) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(words) == 0


@pytest.mark.slow
@pytest.mark.long
def test_a_run_of_other_settings_in_the_folder_is_not_taken_for_this_one(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    words = [str(tiny), "--quick", "--methods", "base", "--output", str(out)]
    assert main(words) == 0
    run_dir = out / "seed-0/runs/expert-sums"
    settings = read_config(run_dir)
    training = settings.training.model_copy(update={"lr": 0.5})
    write_config(run_dir, settings.model_copy(update={"training": training}))
    assert main(words) == 2
    assert f"{run_dir} is a run of other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (
            "environment = 3\nstages = [{name='a'}]",
            ["base=arithmetic_add"],
            "environment",
        ),
        ("environment = {id = 'AgentPEFT/Mixture-v0', kwargs = {sources = 3}}", [], "sources"),
        (
            "environment = {id = 'AgentPEFT/Mixture-v0', kwargs = {sources = ["
            "{name = 'a', id = 'AgentPEFT/Arithmetic-v0', kwargs = 5}]}}",
            [],
            "kwargs",
        ),
    ],
)
def test_a_file_of_wrong_types_is_refused_in_a_line(text, words, message, tmp_path, capsys):
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")
    assert main([str(path), *words, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_stages_may_have_files_of_their_own(tmp_path):
    path = tmp_path / "files.toml"
    path.write_text(
        "environment = {id = 'AgentPEFT/DBBench-v0', kwargs = {data = 'first.json'}}\n"
        "evaluation = {num_tasks = 2, env_kwargs = {data = 'held.json'}}\n"
        "stages = [{name = 'first'}, {name = 'second', kwargs = {data = 'second.json'}}]\n",
        encoding="utf-8",
    )
    sources = read_sequence(str(path)).settings.environment.kwargs["sources"]
    assert [source["kwargs"]["data"] for source in sources] == ["first.json", "second.json"]


def test_a_base_is_known_by_its_files(tmp_path):
    (tmp_path / "weights").write_bytes(bytes(65 << 20))
    first = hash_named(str(tmp_path))
    with (tmp_path / "weights").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"1")
    assert hash_named(str(tmp_path)) != first
    assert hash_named("owner/name") is None


def test_a_seed_whose_stages_its_experts_do_not_raise_is_left_out(
    tiny, tmp_path, monkeypatch, caplog
):
    class Trial:
        def __init__(self, sequence, *_, **__):
            self.seed = sequence.settings.seed

        def run(self, order, methods):
            if self.seed in poor:
                raise TooFewStagesError("of 3 stages 1")
            return SimpleNamespace(seed=self.seed, stages=("sums", "backwards"))

    monkeypatch.setattr(lifelong_study, "Course", Trial)
    monkeypatch.setattr(lifelong_study, "make_base", lambda *_: "base")
    study = Study(read_sequence(str(tiny)), ["base"], num_seeds=3)
    poor = {1}
    courses = list(run_study(study, tmp_path / "out", StopSignals()))
    assert [course.seed for course in courses] == [0, 2]
    assert "seed 1 is left out: of 3 stages 1" in caplog.text
    poor = {0, 1, 2}
    with pytest.raises(TooFewStagesError):
        list(run_study(study, tmp_path / "out", StopSignals()))


def test_two_at_once_in_one_folder_are_refused(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    with lock_run(out):
        assert main([str(tiny), "--quick", "--methods", "base", "--output", str(out)]) == 2
    assert "is being trained already, by process" in capsys.readouterr().err


def updates(folder):
    """Returns what an adapter adds to each of the base's weights, by their names."""
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    weights = load_file(folder / "adapter_model.safetensors")
    scale, end = config["lora_alpha"] / config["r"], ".lora_A.weight"
    return {
        f"{name.removeprefix('base_model.model.').removesuffix(end)}.weight": scale
        * weights[name.replace("lora_A", "lora_B")]
        @ weights[name]
        for name in weights
        if name.endswith(end)
    }


@pytest.mark.long
@pytest.mark.slow
def test_an_average_of_adapters_is_the_mean_of_their_updates(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    learn(capsys, tiny, "--quick", "--methods", "bank", "--output", out)
    folders = [next(run.rglob("adapter")) for run in sorted((out / "seed-0/runs").iterdir())]
    rng = np.random.default_rng(0)
    for path in (folder / "adapter_model.safetensors" for folder in folders):
        weights = {n: w + rng.normal(0, 0.05, w.shape) for n, w in load_file(path).items()}
        save_file({n: w.astype(np.float32) for n, w in weights.items()}, path, {"format": "pt"})
        seal(path.parents[1])
    settings = Settings(model={"name": str(folders[0])})

    combine_adapters(load_base(settings), folders, "cat", tmp_path / "average")
    mean, parts = updates(tmp_path / "average"), [updates(folder) for folder in folders]
    assert len(parts) == 3
    for name, update in mean.items():
        expected = sum(part[name] for part in parts) / 3
        assert np.allclose(update, expected, atol=1e-7)
    combine_adapters(load_base(settings), folders, "ties_svd", tmp_path / "ties")
    assert any(update.any() for update in updates(tmp_path / "ties").values())


@pytest.mark.long
@pytest.mark.slow
def test_what_o_lora_serves_is_the_base_with_the_sum_of_all_its_adapters(tiny, tmp_path, capsys):
    out, text = tmp_path / "out", tiny.read_text("utf-8")
    bonus = "lr = 2e-2, entropy_coeff = 0.01}"  # so that every update has a gradient
    tiny.write_text(text.replace("lr = 2e-2}", bonus), "utf-8")
    summary = learn(capsys, tiny, "--methods", "o_lora", "--output", out)
    runs = [out / "seed-0/runs" / name for name in ("expert-sums", "order-0.o_lora-1-differences")]
    runs.append(out / "seed-0/runs/order-0.o_lora-2-backwards")
    folders = [find_adapter(run) for run in runs]
    assert read_config(runs[2]).lora.orthogonal_to == (str(folders[0]), str(folders[1]))
    base = {}
    for number, folder in enumerate(folders):
        opened = load_base(Settings(model={"name": str(folder)}))
        alone = {name: weight.clone() for name, weight in opened.model.state_dict().items()}
        served = merge_adapter(open_adapter(opened, folder)).state_dict()
        changes = updates(folder)
        for name, weight in alone.items():
            base[name] = base.get(name, weight) + changes.get(name, 0.0)
        assert number == 0 or any(change.any() for change in changes.values())
    assert all(np.allclose(served[name], base[name], atol=1e-6) for name in served)
    rows = read_rows(runs[2] / "metrics.jsonl")
    losses = [row["train/orthogonality"] for row in rows if "train/orthogonality" in row]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] > 0
    sizes = [sum(f.stat().st_size for f in folder.iterdir()) for folder in folders]
    assert summary["methods"]["o_lora"]["bytes"] == sum(sizes)


@pytest.mark.long
@pytest.mark.slow
def test_the_benchmark_refuses_wrong_words_in_one_line():
    words = [sys.executable, "benchmarks/lifelong.py", "arith5", "--methods", "nope"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: unknown method 'nope'; known: average" in done.stderr
    assert "Traceback" not in done.stderr
