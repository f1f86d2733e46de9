"""What `gpu.py loop` measures: a whole training run with vLLM, and bare vLLM beside it.

`gpu.py` starts this file for each of both, since a run's processes must have the card alone:

    python benchmarks/gpu_loop.py train FOLDER MODEL [SETTING=VALUE ...]
    python benchmarks/gpu_loop.py bare FOLDER MODEL VLLM_ARGUMENTS

The run notes the prompts and the numbers of sampled tokens of its last iteration in FOLDER, which
bare vLLM then samples: with an adapter, all at once, without seeds and log-probabilities.
"""

import json
import logging
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.policies.workers.owned_process import end_with

CONFIG = "db_bench_qwen25_7b"
REQUESTS, ADAPTER, CACHE = "requests.json", "adapter", "vllm-cache"
_NOTES = "AGENTPEFT_BENCHMARK_REQUESTS"
COMMON = (
    "env_runners.num_env_runners=1",
    "learners.gradient_checkpointing=false",
    "training.num_minibatches=2",
    "training.lr=1e-4",
    "evaluation.num_tasks=0",
    "evaluation.interval=0",
    "output.loggers=[]",
    "output.checkpoint_interval=0",
)
ON_GPU = (
    *COMMON,
    "env_runners.kv_cache_gib=8",
    "env_runners.max_context_tokens=2048",
    "env_runners.max_new_tokens=160",
    "env_runners.max_concurrent_episodes=256",
    "num_threads=6",
    "learners.max_tokens_per_micro_batch=16384",
    "training.num_groups=32",
    "training.num_iterations=6",
)
TINY = (
    *COMMON,
    "num_threads=1",
    "num_cpus_per_process=0.5",
    "model.dtype=float32",
    "env_runners.num_gpus_per_env_runner=0",
    "learners.num_gpus_per_learner=0",
    "env_runners.kv_cache_gib=0.1",
    "env_runners.max_context_tokens=2048",
    "env_runners.max_new_tokens=8",
    "env_runners.max_concurrent_episodes=8",
    "learners.max_tokens_per_micro_batch=4096",
    "training.num_groups=2",
    "training.group_size=4",
    "training.num_iterations=2",
)
PARTS = {
    "ray_s": r"started Ray",
    "learner_s": r"the learner: ready",
    "vllm_imported_s": r"vLLM: imported in",
    "env_runner_s": r"the env runners: ready",
}
"""Seconds since the command began, and the line that ends each part."""
VLLM_PARTS = {
    "import_s": r"vLLM: imported in ([\d.]+) s",
    "load_s": r"Model loading took .* and ([\d.]+) seconds",
    "compile_s": r"torch\.compile took ([\d.]+) s",
    "graphs_s": r"Graph capturing finished in ([\d.]+) secs",
    "init_s": r"init engine .*? took ([\d.]+) s",
}
"""Seconds that a line of ours or of vLLM's names; `init_s` contains the two above it."""
_SAMPLING_S = 0.5


@dataclass
class Watch:
    """What was seen of a run's machine while it ran: of the card, and of its processes."""

    busy: list[tuple[float, float]] = field(default_factory=list)
    """Moments, and the share of the time before in which the card computed, in percent."""
    memory_mib: dict[str, float] = field(default_factory=dict)
    """The most that the processes of a kind held: on a card, or of a CPU's memory."""


@contextmanager
def watched(is_gpu: bool) -> Iterator[Watch]:
    """Yields what is seen within the block, twice a second."""
    watch, is_over = Watch(), threading.Event()

    def look() -> None:
        while not is_over.wait(_SAMPLING_S):
            held: dict[str, float] = {}
            if is_gpu:
                busy = ask_card("--query-gpu=utilization.gpu,memory.used")
                watch.busy.append((time.monotonic(), float(busy[0][0])))
                held["card"] = float(busy[0][1])
                sizes = ask_card("--query-compute-apps=pid,used_memory")
                processes = [(int(pid), float(size)) for pid, size in sizes if size.isdigit()]
            else:
                processes = [(pid, read_rss_mib(pid)) for pid in list_processes()]
            for pid, mib in processes:
                kind = name_process(pid)
                held[kind] = held.get(kind, 0.0) + mib
            for kind in held.keys() - {""}:
                watch.memory_mib[kind] = max(watch.memory_mib.get(kind, 0.0), held[kind])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()


def ask_card(query: str) -> list[list[str]]:
    """Returns the rows that nvidia-smi answers."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [[value.strip() for value in line.split(",")] for line in text.splitlines()]


def list_processes() -> list[int]:
    """Returns the ids of all processes of this machine."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def read_rss_mib(pid: int) -> float:
    """Returns what a process has in memory; 0 once it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def name_process(pid: int) -> str:
    """Returns what a process of a run is; an empty text for others."""
    try:
        return name_command(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"))
    except OSError:
        return ""


def name_command(command: str) -> str:
    """Returns what the process of a command line is, by the names that Ray and vLLM give it.

    >>> name_command("ray::LearnerActor.update"), name_command("ray::IDLE")
    ('learner', '')
    """
    if command.startswith("VLLM::"):
        return "engine"
    kinds = {"Learner": "learner", "EnvRunner": "env_runner"}
    name = command.removeprefix("ray::") if command.startswith("ray::") else ""
    return next((kind for start, kind in kinds.items() if start in name), "")


def measure_run(
    folder: Path, model: Path, words: Sequence[str], *, is_gpu: bool, notes: str = REQUESTS
) -> dict[str, Any]:
    """Returns the seconds of a run's start and of its iterations, and what was seen meanwhile.

    The seconds of the start are printed as they are known, since the run may be cut off. `notes` is
    the file of what was sampled last. Raises: RuntimeError where it fails.
    """
    command = [sys.executable, __file__, "train", str(folder), str(model), *words]
    variables = {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_CACHE_ROOT": str(folder / CACHE)}
    variables[_NOTES] = str(folder.absolute() / notes)
    environment = {**os.environ, **variables, "PYTHONUNBUFFERED": "1"}
    has_cache = (folder / CACHE).exists()
    parts = PARTS | VLLM_PARTS
    begin_s, lines = time.monotonic(), list[tuple[float, str]]()
    with (
        watched(is_gpu) as watch,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            lines.append((time.monotonic(), line))
            for name, pattern in parts.items():
                if re.search(pattern, line):
                    seen = {"seen": name, "after_s": round(time.monotonic() - begin_s, 1)}
                    print(json.dumps(seen | {"line": line.strip()[-200:]}), flush=True)
    if process.returncode:
        raise RuntimeError("".join(line for _, line in lines)[-4000:])
    metrics = read_last_metrics(folder)
    ends_s = [at_s for at_s, line in lines if line.startswith("{") and '"left_s"' in line]
    first_s = ends_s[0] - metrics[0]["time/total_s"]
    values: dict[str, Any] = {
        "had_vllm_cache": has_cache,
        "first_sample_s": round(first_s - begin_s, 1),
    }
    for name, pattern in PARTS.items():
        ended_s = (at_s - begin_s for at_s, line in lines if re.search(pattern, line))
        values[name] = next((round(seconds, 1) for seconds in ended_s), None)
    for name, pattern in VLLM_PARTS.items():
        hits = [found[1] for _, line in lines if (found := re.search(pattern, line))]
        values[f"vllm_{name}"] = float(hits[-1]) if hits else None
    values |= summarize_iterations(metrics[1:] or metrics)
    busy = [share for at_s, share in watch.busy if ends_s[0] <= at_s <= ends_s[-1]]
    values["gpu_busy"] = round(statistics.fmean(busy) / 100, 3) if busy else None
    values["memory_mib"] = {name: round(mib) for name, mib in sorted(watch.memory_mib.items())}
    return values


def read_last_metrics(folder: Path) -> list[dict[str, float]]:
    """Returns the iterations' metrics of the newest run in a folder."""
    file = max(folder.glob("outputs/*/*/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line.get("time/total_s")]


def summarize_iterations(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns an iteration's median seconds by part, tokens/s over all, and the worst proof."""
    total_s = sum(line["time/total_s"] for line in lines)
    sampling_s = sum(line["time/sample_s"] for line in lines)
    tokens = sum(line["sample/num_sampled_tokens"] for line in lines)
    parts = ("total", "sample", "learn", "broadcast", "orchestration", "env")
    values: dict[str, Any] = {
        f"{part}_s": round(statistics.median(line[f"time/{part}_s"] for line in lines), 3)
        for part in parts
    }
    values["num_iterations"] = len(lines)
    values["sampled_tokens_per_s"] = round(tokens / total_s, 1)
    values["tokens_per_s_while_sampling"] = round(tokens / sampling_s, 1) if sampling_s else None
    for name in ("train/mismatch_mean", "train/mismatch_max", "delivery/probe_mean"):
        seen = [line[name] for line in lines if line.get(name) is not None]
        values[name.partition("/")[2]] = float(f"{max(seen):.3g}") if seen else None
    return values


def measure_bare(
    folder: Path, model: Path, arguments: dict[str, Any], variables: dict[str, str]
) -> dict[str, Any]:
    """Returns how fast bare vLLM samples what the run sampled. Raises: RuntimeError."""
    command = [sys.executable, __file__, "bare", str(folder), str(model), json.dumps(arguments)]
    environment = {**os.environ, **variables, "VLLM_CACHE_ROOT": str(folder / CACHE)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    values: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return values


def train(folder: Path, model: Path, words: Sequence[str]) -> None:
    """Runs a training run in this process; its learner notes what it received last."""
    import numpy as np

    from agentpeft.launch.checking.preparation import prepare
    from agentpeft.launch.run.fast_dev_run import RandomRewardsActor
    from agentpeft.launch.run.run_folder import Start, make_run_dir, read_start
    from agentpeft.launch.run.run_loop import run_session
    from agentpeft.launch.run.stop_signals import StopSignals

    class NotingLearnerActor(RandomRewardsActor):
        """Notes each episode's prompt and how many tokens were sampled."""

        def update(self) -> dict[str, float]:
            rows = [
                (each.prompt_ids.tolist(), int(np.sum(each.loss_mask)))
                for group in self.received
                for each in group.trajectories
            ]
            Path(os.environ[_NOTES]).write_text(json.dumps(rows), encoding="utf-8")
            return super().update()

    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("agentpeft").setLevel(logging.INFO)
    places = f"output.dir={folder.absolute() / 'outputs'}", f"model.name={model.absolute()}"
    settings = prepare(read_start([CONFIG], [*words, *places]).settings, None, is_new=True)
    run_dir, signals = make_run_dir(settings), StopSignals()
    with signals.handle():
        run_session(Start(settings), run_dir, None, signals, sys.stdout, NotingLearnerActor)


def sample_bare(folder: Path, model: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """Has bare vLLM sample the noted requests, twice; returns how fast the second time was."""
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.lora.request import LoRARequest

    rows = json.loads((folder / REQUESTS).read_text(encoding="utf-8"))
    begin_s = time.perf_counter()
    llm = LLM(model=str(model), **arguments)
    start_s = time.perf_counter() - begin_s
    prompts = [TokensPrompt(prompt_token_ids=ids) for ids, _ in rows]
    params = [
        SamplingParams(
            temperature=1.0, max_tokens=max(length, 1), ignore_eos=True, detokenize=False
        )
        for _, length in rows
    ]
    adapter = LoRARequest("bare", 1, str(folder / ADAPTER))
    for _ in range(2):  # the first time, kernels are still chosen
        llm.reset_prefix_cache()
        begin_s = time.perf_counter()
        done = llm.generate(prompts, params, lora_request=adapter, use_tqdm=False)
        seconds = time.perf_counter() - begin_s
    sampled = sum(len(output.outputs[0].token_ids) for output in done)
    return {
        "start_s": round(start_s, 1),
        "sampling_s": round(seconds, 3),
        "sampled_tokens_per_s": round(sampled / seconds, 1),
        "num_requests": len(rows),
    }


def main(words: Sequence[str]) -> None:
    """Does what `gpu.py` asks of a process of its own, which ends with it."""
    end_with(os.getppid())
    task, folder, model, *rest = words
    if task == "train":
        train(Path(folder), Path(model), rest)
        return
    with reserved_stdout() as output:  # vLLM logs to standard output, also as it ends
        values = sample_bare(Path(folder), Path(model), json.loads(rest[0]))
        print(json.dumps(values), file=output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
