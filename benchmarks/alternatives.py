"""Would a library do what we wrote ourselves, and how fast?

    python benchmarks/alternatives.py batching   # transformers' continuous batching, our engine
    python benchmarks/alternatives.py threads    # ThreadPoolExecutor against our threads

Each prints one JSON line for each repeat, both sides measured in turn, and a last one with the
median, smallest and largest ratio of theirs to ours. All sides do the same work; what the library
would need besides to replace ours (limits of time) is left out, so its figure is the most that it
could come to. Container runtimes are compared in `container_runtimes.py`.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_NUM_REQUESTS = 256
_NUM_NEW_TOKENS = 48
_NUM_CALLS = 256
_NUM_ROUNDS = 100

Measure = Callable[[], float]


@contextmanager
def batching():
    """Yields sampled tokens per second of our engine and of transformers' manager.

    Both answer 256 prompts with 48 tokens each from the built-in model, in groups of 8 that share
    a prompt, as the quickstart does.
    """
    import numpy as np
    import torch
    from transformers import ContinuousBatchingConfig, GenerationConfig

    from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
    from agentpeft.policies.messages import GenerationRequest
    from agentpeft.policies.models.tiny import build_tiny
    from agentpeft.policies.settings.config import TinySettings

    torch.set_num_threads(1)  # a second one may have other work
    corpus = [f"SELECT c{i} FROM t WHERE a{i} = {i}" for i in range(500)]
    base = build_tiny(TinySettings(), corpus)
    vocab, rng = base.model.config.vocab_size, np.random.default_rng(0)
    prompts = [rng.integers(4, vocab, 120) for _ in range(_NUM_REQUESTS // 8)]
    prompts = [prompt for prompt in prompts for _ in range(8)]
    engine = TransformersEngine(base.model, (), EngineSettings(needs_adapter=False))
    rounds = itertools.count()

    def run_ours() -> float:
        number = next(rounds)
        names = [f"{number}-{i}" for i in range(len(prompts))]

        async def ask() -> list[object]:
            requests = [
                GenerationRequest(
                    session=name, prompt_ids=prompt, max_new_tokens=_NUM_NEW_TOKENS, seed=[i]
                )
                for i, (name, prompt) in enumerate(zip(names, prompts, strict=True))
            ]
            return list(await asyncio.gather(*map(engine.generate, requests)))

        engine.update_sessions(opened=names)
        start_s = time.perf_counter()
        asyncio.run(ask())
        seconds = time.perf_counter() - start_s
        engine.update_sessions(closed=names)
        return len(prompts) * _NUM_NEW_TOKENS / seconds

    other = build_tiny(TinySettings(), corpus).model
    other.set_attn_implementation("sdpa")
    wanted = GenerationConfig(
        do_sample=True,
        max_new_tokens=_NUM_NEW_TOKENS,
        min_new_tokens=_NUM_NEW_TOKENS,
        eos_token_id=-1,
        pad_token_id=0,
    )
    config = ContinuousBatchingConfig(
        page_size=32, num_blocks=4096, max_batch_tokens=8192, max_requests_per_batch=_NUM_REQUESTS
    )

    def run_theirs() -> float:
        start_s = time.perf_counter()
        answers = other.generate_batch(
            [prompt.tolist() for prompt in prompts],
            generation_config=wanted,
            continuous_batching_config=config,
        )
        seconds = time.perf_counter() - start_s
        num_tokens = sum(len(answer.generated_tokens) for answer in answers.values())
        return num_tokens / seconds

    yield {"ours": run_ours, "transformers": run_theirs}
    engine.close()


@contextmanager
def threads():
    """Yields environment calls per second: 256 asked at once, a hundred times.

    Each call takes 20 microseconds of Python, as an arithmetic step does. The executor has no limit
    of time, so this is the most that it could come to.
    """
    from agentpeft.policies.rollout.env_threads import EnvThreads

    def call() -> int:
        return sum(range(1_000))

    async def use_threads() -> None:
        threads = EnvThreads(64, 60.0)
        for _ in range(_NUM_ROUNDS):
            await asyncio.gather(*(threads.call(call) for _ in range(_NUM_CALLS)))
        threads.close()

    async def use_executor() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(64) as executor:
            for _ in range(_NUM_ROUNDS):
                calls = [loop.run_in_executor(executor, call) for _ in range(_NUM_CALLS)]
                await asyncio.gather(*calls)

    def rate(use: Callable[[], object]) -> float:
        start_s = time.perf_counter()
        asyncio.run(use())  # type: ignore[arg-type]
        return _NUM_ROUNDS * _NUM_CALLS / (time.perf_counter() - start_s)

    yield {"ours": lambda: rate(use_threads), "executor": lambda: rate(use_executor)}


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["batching", "threads"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    make = {"batching": batching, "threads": threads}[options.what]
    ratios: dict[str, list[float]] = {}
    with make() as sides:
        for run in sides.values():
            run()  # not counted
        for _ in range(options.repeats):
            rates = {name: run() for name, run in sides.items()}
            print(json.dumps({name: round(rate, 1) for name, rate in rates.items()}), flush=True)
            for name in rates.keys() - {"ours"}:
                ratios.setdefault(name, []).append(rates[name] / rates["ours"])
    line = {
        name: {
            "ratio_median": round(statistics.median(values), 2),
            "smallest": round(min(values), 2),
            "largest": round(max(values), 2),
        }
        for name, values in sorted(ratios.items())
    }
    print(json.dumps({"what": options.what, "repeats": options.repeats, **line}))


if __name__ == "__main__":
    main()
