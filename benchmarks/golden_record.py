"""Do two checkouts train alike, bit for bit?

    python benchmarks/golden_record.py ../other-checkout
    python benchmarks/golden_record.py ../other-checkout --runs arithmetic_grpo --keep

Three short deterministic runs are played in each checkout, with caches of their own: GRPO on
Arithmetic in one process; PPO with a critic on DB-bench, two env runners on Ray; OS-interaction
with a warm start and several turns (long enough that the policy hardly writes `&` or `|`, whose
commands print in any order). The SHA-256 of the adapter's weights and of all metrics but
times are compared. Bits depend on the processor and on torch, so a record is compared on one
machine and never stored.

One JSON line a run; exit status 1 if any differs.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
COMMON = """
deterministic = true
seed = 7
num_threads = 1
tiny = {hidden_size = 32, num_layers = 2, vocab_size = 512}
lora = {rank = 4, alpha = 8.0}
output = {loggers = ["episodes"], checkpoint_interval = 2}
"""
RUNS = {
    "arithmetic_grpo": """
experiment = "arithmetic_grpo"
warm_start = {num_steps = 60, batch_size = 16, lr = 1e-2}
env_runners = {num_env_runners = 0, max_new_tokens = 8}
evaluation = {num_tasks = 40, interval = 2}

[training]
num_iterations = 4
num_groups = 8
group_size = 4
num_epochs = 2
lr = 1e-2
entropy_coeff = 0.01

[environment]
kwargs = {operations = ["addition"], num_digits = 2, prompt = "compact"}
""",
    "db_bench_ppo": """
experiment = "db_bench_ppo"
warm_start = {num_steps = 60, batch_size = 8, lr = 1e-2, env_kwargs = {oracle_lapses = 0.5}}
evaluation = {num_tasks = 16, interval = 2, env_kwargs = {split = "test"}}

[env_runners]
num_env_runners = 2
max_new_tokens = 64

[training]
algorithm = "ppo"
critic = "separate"
num_iterations = 3
num_groups = 8
group_size = 4
num_minibatches = 2
lr = 5e-3

[environment]
id = "AgentPEFT/DBBench-v0"

[environment.kwargs]
prompt = "compact"
split = "train"
skills = ["where_single_condition", "insert", "update"]
max_columns = 3
max_rows = 4
max_text_chars = 6
invent = true
autocommit = false
reward = "exact_match"
""",
    "os_interaction_warm": """
experiment = "os_interaction_warm"
warm_start = {num_steps = 300, batch_size = 16, lr = 1e-2, env_kwargs = {oracle_lapses = 0.5}}
env_runners = {num_env_runners = 0, max_new_tokens = 48}
training = {num_iterations = 3, num_groups = 6, group_size = 4, lr = 5e-3, entropy_coeff = 0.01}
curriculum = {sampling = "frontier"}
evaluation = {num_tasks = 12, interval = 2, env_kwargs = {split = "test"}}

[environment]
id = "AgentPEFT/OSInteraction-v0"

[environment.kwargs]
prompt = "compact"
split = "train"
skills = ["rm", "cp", "echo", "chmod"]
max_phrasings = 1
max_turns = 3
invent = true
""",
}


def record(checkout: Path, name: str, folder: Path) -> dict[str, str]:
    """Trains with a checkout's code in `folder`, and returns the hashes of what came of it."""
    (folder / "golden.toml").write_text(COMMON + RUNS[name], encoding="utf-8")
    env = os.environ | {
        "PYTHONPATH": str(checkout),
        "AGENTPEFT_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "agentpeft.launch.cli", "train", "golden.toml"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} in {checkout} failed:\n{done.stderr[-3000:]}")
    (run_dir,) = (folder / "outputs" / name).iterdir()
    newest = sorted((run_dir / "checkpoints").glob("checkpoint-*"))[-1]
    hashes = {
        path.relative_to(newest).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(newest.rglob("adapter_model.safetensors"))
    }
    lines = [
        {key: value for key, value in json.loads(line).items() if not key.startswith("time/")}
        for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    (folder / "metrics.json").write_text(json.dumps(lines, indent=1, sort_keys=True))
    hashes["metrics"] = hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()
    return hashes


def main(words: Sequence[str] | None = None) -> int:
    """Prints a JSON line for each run; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    options = parser.parse_args(words)
    is_equal = True
    with ExitStack() as stack:
        folder = tempfile.mkdtemp()
        if not options.keep:
            stack.callback(shutil.rmtree, folder)
        for name in options.runs:
            hashes = []
            for side, checkout in (("other", options.other.resolve()), ("here", HERE)):
                place = Path(folder) / name / side
                place.mkdir(parents=True)
                hashes.append(record(checkout, name, place))
            equal = hashes[0] == hashes[1]
            is_equal = is_equal and equal
            line = {"run": name, "equal": equal, "other": hashes[0], "here": hashes[1]}
            print(json.dumps(line | ({"folder": folder} if options.keep else {})), flush=True)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
