"""What do several runs gain by sharing an engine: memory, and tokens per second?

    python benchmarks/shared_engines.py
    python benchmarks/shared_engines.py --models tiny --runs 4 --repeats 5

Prints a JSON line for each model: runs with a vLLM engine each, and the same runs with an engine
each over one vLLM (`VllmProcess`), in turns. `mib`: private memory and a share of what is shared
(PSS) of vLLM's processes, with all adapters loaded. `tokens_per_s`: of all runs together, which
sample at the same time: median, lowest and highest of the repeats. Each way has all cores. Random
weights in float32 on the CPU, adapters of rank 8 in slots, keys and values of 0.25 GiB a process.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from adapter_sync import CONFIGS, Shapes, make_adapter, save_model

from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.vllm.settings import VllmSettings
from agentpeft.policies.engines.vllm.start import start_engine, start_process
from agentpeft.policies.messages import GenerationRequest

_PROMPT_TOKENS, _CONTEXT = 64, 256
_BYTES = 1 << 28


def main() -> None:
    """Runs the command."""
    args = make_parser().parse_args()
    for name in args.models:
        with TemporaryDirectory() as folder:
            shapes = save_model(name, Path(folder))
            line: dict[str, object] = {"model": name, "runs": args.runs}
            for way in ("own", "shared"):
                line[way] = measure(way, Path(folder), shapes, args)
            print(json.dumps(line), flush=True)


def make_parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=16, help="of each run, at once")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    return parser


def measure(way: str, folder: Path, shapes: Shapes, args: argparse.Namespace) -> dict[str, object]:
    """Returns the memory and the tokens per second of one way."""
    with ExitStack() as stack:
        engines = start_shared(folder, args) if way == "shared" else start_own(folder, args)
        for engine in reversed(engines):  # the one that owns the process last
            stack.callback(engine.close)
        for number, engine in enumerate(engines):
            engine.load_adapter(make_adapter(number, 8, shapes))
        mib = sum(pss_mib(pid) for pid in vllm_processes())
        rates = [play(engines, args, repeat) for repeat in range(args.repeats + 1)][1:]
    return {
        "processes": 1 if way == "shared" else args.runs,
        "mib": round(mib),
        "tokens_per_s": [round(f(rates)) for f in (statistics.median, min, max)],
    }


def settings_of(args: argparse.Namespace, num_adapters: int) -> VllmSettings:
    """Returns what an engine of so many adapters has."""
    most = args.episodes * num_adapters
    return VllmSettings(
        "native", "float32", _CONTEXT, most, 8, _BYTES, num_threads=2, num_adapters=num_adapters
    )


def start_own(folder: Path, args: argparse.Namespace) -> list[Engine]:
    """Returns an engine for each run, each with a vLLM of its own."""
    return [start_engine(folder, [0], settings_of(args, 1)) for _ in range(args.runs)]


def start_shared(folder: Path, args: argparse.Namespace) -> list[Engine]:
    """Returns an engine for each run, all over one vLLM."""
    process = start_process(folder, settings_of(args, args.runs))
    from agentpeft.policies.engines.vllm.engine import VllmEngine  # vllm reads the environment

    own = settings_of(args, 1)
    return [VllmEngine(process, [0], own, owns_process=run == 0) for run in range(args.runs)]


def play(engines: Sequence[Engine], args: argparse.Namespace, repeat: int) -> float:
    """Returns the sampled tokens per second of all engines at once."""
    vocabulary = 200

    def request_of(run: int, episode: int) -> GenerationRequest:
        rng = np.random.default_rng((run, episode, repeat))
        prompt = rng.integers(1, vocabulary, _PROMPT_TOKENS)
        return GenerationRequest(
            f"{repeat}-{episode}", prompt, (run, episode, repeat), max_new_tokens=args.tokens
        )

    async def all_at_once() -> int:
        asked = []
        for run, engine in enumerate(engines):
            requests = [request_of(run, episode) for episode in range(args.episodes)]
            engine.update_sessions(opened=[request.session for request in requests])
            asked += [engine.generate(request) for request in requests]
        return sum(len(completion.token_ids) for completion in await asyncio.gather(*asked))

    start_s = time.perf_counter()
    return asyncio.run(all_at_once()) / (time.perf_counter() - start_s)


def vllm_processes() -> list[int]:
    """Returns the processes below this one."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def pss_mib(pid: int) -> float:
    """Returns a process's private memory, and its part of what it shares; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except ProcessLookupError:  # vLLM starts some for a moment
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
