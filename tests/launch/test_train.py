"""The training command: its settings and errors, its last line, stopping and going on."""

import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from process_parts import children_of, read_processes, seconds_until_gone

from agentpeft.launch.costs.resources import describe_memory, estimate_memory
from agentpeft.launch.data.task_files import with_task_files
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.run.run_folder import CONFIGS, list_configs, read_start
from agentpeft.launch.train import main
from agentpeft.policies.checkpointing.checkpoints import checkpoint_path, list_checkpoints
from agentpeft.policies.settings.config import LearnerSettings, Settings

ROOT = Path(__file__).parents[2]
TINY = """
experiment = "tiny"
deterministic = true
environment = {kwargs = {num_digits = 1, prompt = "compact"}}
num_threads = 1
tiny = {hidden_size = 32, num_layers = 2}
lora = {rank = 4, alpha = 8.0}
warm_start = {num_steps = 5, batch_size = 8}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 4, num_groups = 4, group_size = 2, lr = 1e-2}
evaluation = {num_tasks = 4}
output = {checkpoint_interval = 1, loggers = ["episodes"]}
"""
"""Settings of a run of seconds, in the driver's process."""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The path of a file of tiny settings; outputs land beside it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return str(path)


@pytest.fixture
def start(config, tmp_path):
    """Starts the command in a process of its own."""
    started = []

    def run(*arguments):
        command = [sys.executable, str(ROOT / "launch/train.py"), *arguments]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=pipe, stderr=pipe))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def only_run(tmp_path):
    (run_dir,) = (tmp_path / "outputs" / "tiny").iterdir()
    return run_dir


def wait_for_iterations(tmp_path, number):
    """Returns the run's folder once it has a checkpoint of so many iterations or more."""
    for _ in range(600):
        for folder in tmp_path.glob("outputs/tiny/*/checkpoints"):
            if newest_iteration(folder) >= number:
                return folder.parent
        time.sleep(0.1)
    raise TimeoutError(f"no checkpoint {number}")


def newest_iteration(checkpoints):
    return max((int(path.name[-6:]) for path in list_checkpoints(checkpoints)), default=0)


def learnt(run_dir, iteration):
    """Returns the adapter's bytes, and what was measured that is no time."""
    folder = checkpoint_path(run_dir / "checkpoints", iteration)
    lines = [
        {name: value for name, value in line.items() if not name.startswith("time/")}
        for line in read_metrics(run_dir)
    ]
    return (folder / "adapter" / "adapter_model.safetensors").read_bytes(), lines


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_ready_configs_are_short_and_named_after_their_experiment(path):
    settings = read_start([path.stem], []).settings
    assert settings.experiment == path.stem
    is_in_bfloat16 = settings.env_runners.engine == "vllm" or path.stem == "db_bench_coder_05b_cpu"
    assert is_in_bfloat16 == (settings.model.dtype == "bfloat16")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 30


def test_of_several_configs_a_later_one_wins_and_one_may_build_on_a_preset(tmp_path, capsys):
    (tmp_path / "short.toml").write_text("training = {num_iterations = 3}\n")
    (tmp_path / "own.toml").write_text('base = "arithmetic_add"\nexperiment = "own"\n')
    own, short = str(tmp_path / "own.toml"), str(tmp_path / "short.toml")
    assert main([own, short, "training.lr=0.5", "--dry-run"]) == 0
    settings = Settings(**tomllib.loads(capsys.readouterr().out))
    preset = read_start(["arithmetic_add"], []).settings
    assert (settings.experiment, settings.training.lr) == ("own", 0.5)
    assert (preset.training.num_iterations, settings.training.num_iterations) == (80, 3)
    assert settings.environment == preset.environment


def test_a_dry_run_prints_the_settings_as_toml_and_the_memory(config, tmp_path, capsys):
    assert main([config, "training.lr=0.5", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    settings = Settings(**tomllib.loads(printed))
    assert settings == Settings.from_toml(config, ["training.lr=0.5"])
    for part in ("base_weights", "adapter", "optimizer", "kv_cache", "activations"):
        assert f"#   {part}" in printed
    assert not (tmp_path / "outputs").exists()


def test_a_dry_run_finds_that_a_run_is_held(finished, capsys):
    with (finished / "run.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["--dry-run", "--resume", str(finished)]) == 2
        assert "is being trained already" in capsys.readouterr().err
    assert main(["--dry-run", "--resume", str(finished)]) == 0


def test_a_dry_run_says_with_what_too_large_a_run_would_fit(config, capsys):
    many = "env_runners.max_concurrent_episodes=1000000"
    assert main([config, many, "--dry-run"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("# memory: up to ")
    assert last.endswith(" times what this machine has: set env_runners.max_concurrent_episodes=32")


def test_train_alone_lists_the_configs(config, capsys):
    assert main([]) == 2
    usage, *lines = capsys.readouterr().out.splitlines()
    assert usage.startswith("agentpeft train CONFIG")
    assert [line.split()[0] for line in lines] == sorted(
        path.stem for path in CONFIGS.glob("*.toml")
    )
    assert all(line.endswith((".", ":")) or line[-1].isalnum() for line in lines)


BUILT_IN = [name for name in list_configs() if read_start([name], []).settings.is_tiny]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_preset_takes_another_model(name, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    settings = read_start([name], ["model.name=a/b", "training.num_groups=3"]).settings
    (line,) = [record.getMessage() for record in caplog.records]
    assert "left out what is for the built-in model" in line and " training.lr=" in line
    assert "num_groups" not in line and settings.training.num_groups == 3
    built_in = read_start([name], []).settings
    assert settings.environment.id == built_in.environment.id
    assert settings.environment.kwargs["prompt"] == "full"
    assert settings.environment.kwargs.get("format") in (None, "plain")
    assert settings.env_runners.max_context_tokens == 2048 and settings.training.lr <= 1e-4
    assert settings.warm_start.num_steps == 0 and settings.experiment == name
    assert settings.evaluation.env_kwargs == built_in.evaluation.env_kwargs


def test_the_memory_of_a_tiny_model_is_counted_by_hand():
    tiny = {"hidden_size": 32, "num_layers": 1}
    settings = Settings(tiny={**tiny, "vocab_size": 300}, lora={"rank": 2})
    attention, mlp = 4 * 32 * 32 + 4 * 32, 3 * 32 * 88
    weights = 300 * 32 + attention + mlp + 3 * 32
    adapter = 2 * (4 * (32 + 32) + 3 * (32 + 88))
    estimate = estimate_memory(settings)
    assert estimate["base_weights"] == pytest.approx(weights * 4 / 2**20)
    assert estimate["optimizer"] == pytest.approx(adapter * 12 / 2**20)
    several = settings.model_copy(update={"learners": LearnerSettings(num_learners=2)})
    assert estimate_memory(several)["optimizer"] == pytest.approx(adapter * 16 / 2**20)
    assert "learners: 2" in describe_memory(several)[0]
    critic = {"training": {"algorithm": "ppo", "critic": "separate", "entropy_coeff": 0.0}}
    more = estimate_memory(Settings(**{**settings.model_dump(), **critic}))["learner"]
    assert more - estimate["learner"] == pytest.approx(adapter * 16 / 2**20)


def test_the_memory_of_a_sharded_base_is_counted_by_hand():
    tiny = {"hidden_size": 32, "num_layers": 2}
    whole = Settings(tiny={**tiny, "vocab_size": 300}, learners={"num_learners": 4})
    layer, rest = 4 * 32 * 32 + 4 * 32 + 3 * 32 * 88 + 2 * 32, 300 * 32 + 32
    sharded = whole.model_copy(
        update={"learners": LearnerSettings(num_learners=4, shard_base=True)}
    )
    before, after = estimate_memory(whole), estimate_memory(sharded)
    assert before["base_weights"] == pytest.approx((rest + 2 * layer) * 4 / 2**20)
    assert after["base_weights"] == pytest.approx((rest + 2 * layer / 4) * 4 / 2**20)
    assert (before["gathered"], after["gathered"]) == (0, pytest.approx(3 * layer * 4 / 2**20))
    assert (before["roll_back"], after["roll_back"]) == (before["optimizer"] * 12 / 16, 0)
    assert before["learner"] - after["learner"] == pytest.approx(
        (2 * layer * 3 / 4 - 3 * layer) * 4 / 2**20 + before["roll_back"]
    )
    assert before["env_runner"] == after["env_runner"]


def test_the_memory_of_an_engine_over_several_gpus_is_that_of_one_of_them():
    one = Settings(env_runners={"engine": "vllm", "num_gpus_per_env_runner": 1.0})
    several = Settings(env_runners={"engine": "vllm", "num_gpus_per_env_runner": 4.0})
    whole, part = estimate_memory(one), estimate_memory(several)
    assert part["kv_cache"] == pytest.approx(whole["kv_cache"] / 4)
    shared = whole["env_runner"] - whole["adapter"]
    assert part["env_runner"] == pytest.approx(shared / 4 + whole["adapter"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quickstrat"], "unknown config 'quickstrat'; did you mean 'quickstart'?"),
        (["none.toml"], "cannot read settings from 'none.toml'"),
        (["training.lrr=1"], "unknown setting 'training.lrr'; did you mean 'training.lr'?"),
        (["environment.id=AgentPEFT/DBBnch-v0"], "did you mean 'AgentPEFT/DBBench-v0'?"),
        (["training.group_size=1"], "group_size must be >= 2"),
        (["--resume", "nowhere"], "--resume nowhere: no run in 'nowhere': there is no such"),
        (["--resume", "a", "--resume-from", "b"], "give no other"),
        (["--what"], "no such option: --what"),
        (["quickstart", "lr"], "; an override is written section.name=value"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(arguments, message, capsys):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


def test_an_output_folder_that_cannot_be_written_is_said_before_the_run(config, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([config, "output.dir=file"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "output.dir: cannot write into" in line


def test_wandb_that_is_not_installed_is_said(config, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main([config, "output.loggers=['wandb']"]) == 2
    assert "pip install 'agentpeft[wandb]'" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.long
@pytest.mark.slow
def test_a_resumed_run_goes_on_under_its_id_at_wandb(config, tmp_path, start, wandb, monkeypatch):
    """Offline, each process leaves a file of its own; both are of one run, one after the other.

    The id is in the checkpoint: the run's logs need not come along.
    """
    monkeypatch.setenv("WANDB_MODE", "offline")
    few = ("output.loggers=['wandb', 'episodes']", "training.num_iterations=1")
    assert start(config, *few).wait() == 0
    run_dir = only_run(tmp_path)
    (run_dir / "logs").rename(tmp_path / "logs")
    assert start("--resume", str(run_dir), "training.num_iterations=2").wait() == 0
    folders = [
        folder
        for logs in (tmp_path / "logs", run_dir / "logs")
        for folder in logs.glob("wandb/offline-run-*")
    ]
    files = [file for folder in folders for file in folder.glob("run-*.wandb")]
    names = {path.stem.removeprefix("run-") for path in files}
    assert len(files) == 2 and names == {(tmp_path / "logs/wandb.id").read_text()}
    assert b"train/policy_loss" in files[0].read_bytes()
    tables = [
        json.loads(path.read_text("utf-8"))
        for folder in folders
        for path in folder.glob("files/media/table/episodes_*.table.json")
    ]
    assert {row[0] for table in tables for row in table["data"]} == {"train", "eval"}
    for table in tables:
        assert table["columns"][0] == "set" and table["columns"][-1] == "conversation"
        for kind in ("train", "eval"):
            assert 0 <= len([row for row in table["data"] if row[0] == kind]) <= 8
    seen = {(row[0], row[1], row[2]) for table in tables for row in table["data"]}
    assert len(seen) > 8  # each table has other episodes


def test_task_files_are_found_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held_out = {"env_kwargs": {"data": "test.jsonl"}}
    environment = {"id": "AgentPEFT/GSM8K-v0", "kwargs": {"data": "train.jsonl"}}
    stages = {"stages": [{"data": "first.jsonl"}, {"max_turns": 2}, {"data": "hub"}]}
    settings = Settings(environment=environment, evaluation=held_out, curriculum=stages)
    settings = with_task_files(settings)
    assert settings.environment.kwargs == {"data": str(tmp_path / "train.jsonl")}
    assert settings.evaluation.env_kwargs == {"data": str(tmp_path / "test.jsonl")}
    first = {"data": str(tmp_path / "first.jsonl")}
    assert settings.curriculum.stages == (first, {"max_turns": 2}, {"data": "hub"})


def test_a_run_leaves_its_files_and_a_last_line(config, tmp_path, capsys):
    assert main([config]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    run_dir = only_run(tmp_path)
    assert {"config.toml", "metrics.jsonl", "checkpoints", "sessions", "logs"} <= {
        path.name for path in run_dir.iterdir()
    }
    assert [line["step"] for line in lines[:-1]] == [0, 1, 2, 3, 4, 4]
    assert {"loss", "accuracy", "reward", "lr"} <= set(lines[1])
    last = lines[-1]
    assert 0 <= last["before"]["success_rate"] <= 1 and 0 <= last["after"]["success_rate"] <= 1
    assert last["adapter"].startswith("outputs/tiny/")
    assert (tmp_path / last["adapter"] / "adapter_config.json").is_file()
    assert {"sample", "learn", "broadcast", "total"} <= set(last["seconds"])
    left = [line.get("left_s") for line in lines[:-1]]
    assert left[0] is left[-1] is None and left[4] == 0 < left[3] and left[1] > 0
    assert set(last["per_success"]) == {"seconds", "tokens"}


def test_a_run_leaves_the_garbage_collector_as_it_was(config, capsys):
    before = gc.get_freeze_count()
    assert main([config]) == 0
    assert gc.get_freeze_count() == before
    capsys.readouterr()


def test_a_run_starts_from_the_weights_of_an_adapter(config, tmp_path, capsys):
    assert main([config, "training.num_iterations=1"]) == 0
    adapter = json.loads(capsys.readouterr().out.splitlines()[-1])["adapter"]
    name = "adapter_model.safetensors"
    checkpoint = Path(adapter).parent
    for words in ([config], []):  # without a config, with the run's own
        for start in (adapter, checkpoint, checkpoint.parents[1]):  # the newest one of a run
            arguments = [*words, "training.num_iterations=0", "--resume-from", str(start)]
            assert main(arguments) == 0
            again = json.loads(capsys.readouterr().out.splitlines()[-1])["adapter"]
            assert (Path(again) / name).read_bytes() == (Path(adapter) / name).read_bytes()
    shutil.copytree(adapter, tmp_path / "elsewhere")
    assert main(["--resume-from", str(tmp_path / "elsewhere")]) == 2
    assert "is in no run: name a config too" in capsys.readouterr().err


def test_a_context_without_room_for_an_action_ends_the_run(config, capsys):
    short = "env_runners.max_context_tokens=5"
    assert main([config, short, "evaluation.num_tasks=8"]) == 1
    told = capsys.readouterr().err
    assert "of 8 tasks no prompt leaves room for an action in env_runners.max_context" in told


@pytest.mark.slow
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(config, tmp_path, start):
    longer = "training.num_iterations=60"
    process = start(config, longer)
    run_dir = wait_for_iterations(tmp_path, 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert newest_iteration(run_dir / "checkpoints") < 60
    assert main(["--resume", str(run_dir)]) == 0
    whole = tmp_path / "whole"
    assert main([config, longer, f"output.dir={whole}"]) == 0
    assert learnt(run_dir, 60) == learnt(next((whole / "tiny").iterdir()), 60)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_whose_gcs_was_killed_ends_with_all_it_had_started(tmp_path, start):
    driver = start("tiny.toml", "env_runners.num_env_runners=1", "training.num_iterations=9999")
    wait_for_iterations(tmp_path, 1)
    own = set(children_of(driver.pid))
    commands = {pid: text for pid, text in read_processes("cmdline") if pid in own}
    os.kill(next(pid for pid in commands if "gcs_server" in commands[pid]), signal.SIGKILL)
    names = ("ray::EnvRunnerActor", "ray::LearnerActor")
    workers = [pid for pid in commands if commands[pid].startswith(names)]
    assert len(workers) == 2
    seconds_until_gone([driver.pid, *workers], 90)
    assert driver.wait() != 0


KILLED = """
import os, signal, sys
from importlib import import_module
from agentpeft.launch.train import main

module, name, attribute, call = sys.argv[1].split(":")
owner = getattr(import_module(module), name) if name else import_module(module)
whole, calls = getattr(owner, attribute), 0

def killed(*args, **kwargs):
    global calls
    calls += 1
    if calls == int(call):
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*args, **kwargs)

setattr(owner, attribute, killed)
main(sys.argv[2:])
"""
"""The training command, killed as it calls something for the n-th time."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(  # before the gradients
            "agentpeft.policies.learning.objective:Objective:compute:3", id="update"
        ),
        pytest.param(  # among tokens
            "agentpeft.policies.engines.transformers.batching:Batch:step:22",
            id="rollout",
            marks=pytest.mark.long,
        ),
        pytest.param(  # among a checkpoint's files
            "agentpeft.envs.system.whole_files::bring_to_disk:28", id="checkpoint"
        ),
    ],
)
def test_a_run_killed_in_the_middle_goes_on_as_if_nothing_had_been(config, tmp_path, moment):
    always = "training.entropy_coeff=0.01"  # every episode counts, whatever its reward
    command = [sys.executable, "-c", KILLED, moment, config, always]
    killed = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    run_dir = only_run(tmp_path)
    newest = newest_iteration(run_dir / "checkpoints")
    assert killed.returncode == -signal.SIGKILL and 1 <= newest < 4
    assert main(["--resume", str(run_dir)]) == 0
    whole = tmp_path / "whole"
    assert main([config, always, f"output.dir={whole}"]) == 0
    assert learnt(run_dir, 4) == learnt(next((whole / "tiny").iterdir()), 4)


@pytest.mark.slow
def test_settings_may_change_on_resume_and_are_kept(config, tmp_path, caplog, capsys):
    assert main([config, "training.num_iterations=1"]) == 0
    run_dir = only_run(tmp_path)
    assert main(["--resume", str(run_dir), "training.num_iterations=2", "training.lr=5e-3"]) == 0
    assert "goes on with training.lr = 0.005 (was 0.01)" in caplog.text
    assert main(["--resume", str(run_dir)]) == 0
    assert [line["train/lr"] for line in read_metrics(run_dir) if "train/lr" in line] == [
        1e-2,
        5e-3,
    ]
    capsys.readouterr()
    assert main(["--resume", str(run_dir), "training.group_size=4"]) == 2
    assert "--resume may not change 'training.group_size'" in capsys.readouterr().err
    for word, answer in (
        ("evaluation.intervall=5", "did you mean 'evaluation.interval'"),
        ("training.kl_placement=reward", "training.kl_placement is no longer a setting"),
    ):
        assert main(["--resume", str(run_dir), word]) == 2
        assert answer in capsys.readouterr().err


def test_an_edited_file_of_settings_is_refused(config, tmp_path, capsys):
    assert main([config, "training.num_iterations=1"]) == 0
    path = only_run(tmp_path) / "config.toml"
    path.write_text(path.read_text().replace("lr = 0.01", "lr = 0.02"))
    assert main(["--resume", str(path.parent)]) == 2
    assert "config.toml' is not as the run has written it" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_whole(
    config, tmp_path, capsys
):
    assert main([config]) == 0
    run_dir = only_run(tmp_path)
    before, newest = list_checkpoints(run_dir / "checkpoints")
    weights = newest / "adapter" / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert main(["--resume", str(run_dir)]) == 1
    message = capsys.readouterr().err
    assert "adapter/adapter_model.safetensors does not match its SHA-256" in message
    assert str(before) in message


@pytest.mark.slow
def test_a_run_goes_on_from_an_older_checkpoint_and_forgets_the_newer(config, tmp_path):
    assert main([config]) == 0
    run_dir = only_run(tmp_path)
    whole = learnt(run_dir, 4)
    older = list_checkpoints(run_dir / "checkpoints")[0]
    assert newest_iteration(older.parent) == 4 and older.name.endswith("3")
    assert main(["--resume", str(older), "training.num_iterations=3"]) == 0
    assert newest_iteration(older.parent) == 3
    assert main(["--resume", str(run_dir), "training.num_iterations=4"]) == 0
    steps = [line["train/step"] for line in read_metrics(run_dir)]
    assert steps == [0, 1, 2, 3, 4, 4]
    assert learnt(run_dir, 4)[0] == whole[0]


@pytest.mark.slow
def test_a_run_that_is_under_way_is_not_resumed_by_another(config, tmp_path, start, capsys):
    process = start(config, "training.num_iterations=10000")
    run_dir = wait_for_iterations(tmp_path, 1)
    assert main(["--resume", str(run_dir), "training.lr=0.5"]) == 2
    assert f"is being trained already, by process {process.pid} on" in capsys.readouterr().err
    process.kill()
    process.wait()
    stopped_at = newest_iteration(run_dir / "checkpoints") + 1
    assert main(["--resume", str(run_dir), f"training.num_iterations={stopped_at}"]) == 0
    assert {line.get("train/lr", 0.01) for line in read_metrics(run_dir)} == {0.01}


@pytest.mark.slow
def test_a_folder_that_is_deleted_under_a_run_ends_it(config, tmp_path, start):
    process = start(config, "training.num_iterations=10000")
    run_dir = wait_for_iterations(tmp_path, 1)
    run_dir.rename(tmp_path / "gone")  # at once: a folder that is being emptied may be refilled
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert str(run_dir.name) in errors.decode().splitlines()[-1]
    assert not (run_dir / "checkpoints").exists()


@pytest.mark.slow
def test_an_environment_is_named_with_the_module_that_registers_it(config, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine/Sums-v0', 'agentpeft.envs.arithmetic.env:ArithmeticEnv')\n"
    )
    sys.path.insert(0, str(tmp_path))
    for env_id in ("mine:Mine/Sums-v0", "agentpeft.envs:AgentPEFT/Arithmetic-v0"):
        overrides = [f"environment.id={env_id}", "training.num_iterations=1"]
        assert main([config, f"output.dir={tmp_path / env_id[:4]}", *overrides]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["adapter"]
    sys.path.remove(str(tmp_path))
