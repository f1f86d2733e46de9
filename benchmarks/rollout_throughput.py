"""How many tokens per second does an env runner sample on vLLM, against bare `AsyncLLM`?

    python benchmarks/rollout_throughput.py
    python benchmarks/rollout_throughput.py --serving fused --num-episodes 1024 --repeats 5

The built-in model (untrained, so that nearly every turn has `--max-new-tokens`) plays Arithmetic in
one process. Then `AsyncLLM` alone, with the same arguments and the same adapter, answers the very
prompts with as many tokens each, as many at once. One JSON line for each way of serving: medians of
`--repeats` runs, after one that is not counted; the last line has the ways' ratio.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.vllm.settings import read_vllm_settings
from agentpeft.policies.engines.vllm.start import VARIABLES
from agentpeft.policies.engines.vllm.weight_files import write_adapter
from agentpeft.policies.messages import AdapterVersion, Ids
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.owned_process import owned_children


@dataclass(frozen=True)
class Ask:
    """A prompt and how many tokens answered it."""

    prompt_ids: Ids
    num_tokens: int


def make_settings(args: argparse.Namespace, serving: str) -> Settings:
    """Returns a run's settings."""
    return Settings(
        num_threads=args.num_threads,
        environment={"kwargs": {"num_digits": 3}},
        lora={"rank": args.rank},
        env_runners={
            "num_env_runners": 0,
            "engine": "vllm",
            "serving": serving,
            "kv_cache_gib": args.kv_cache_gib,
            "max_concurrent_episodes": args.concurrency,
            "max_new_tokens": args.max_new_tokens,
        },
    )


def make_adapter(settings: Settings) -> AdapterVersion:
    """Returns an adapter of all linear layers, with a B that is not zero."""
    policy, rng = attach_lora(load_base(settings), settings.lora), np.random.default_rng(0)
    weights = policy.adapter_weights()
    noisy = {
        n: (w + 0.02 * rng.normal(size=w.shape)).astype(np.float32) for n, w in weights.items()
    }
    return make_version(1, "benchmark", noisy, policy.scaling)


def measure_runner(
    settings: Settings, adapter: AdapterVersion, num_groups: int, repeats: int
) -> tuple[list[float], list[Ask]]:
    """Returns tokens per second of each run, and what the last one asked."""
    rates = []
    with closing(EnvRunner(settings)) as runner:
        runner.load_adapter(adapter)
        for run in range(repeats + 1):
            positions = range(run * num_groups, (run + 1) * num_groups)
            start_s = time.perf_counter()
            groups, report = runner.sample([GroupRequest(position, 8) for position in positions])
            rates.append(report.counts.num_sampled_tokens / (time.perf_counter() - start_s))
    episodes = [episode for group in groups for episode in group.trajectories]
    asks = [Ask(episode.prompt_ids, len(episode.token_ids)) for episode in episodes]
    return rates[1:], asks


def measure_bare(
    settings: Settings, adapter: AdapterVersion, asks: Sequence[Ask], repeats: int
) -> list[float]:
    """Returns tokens per second of `AsyncLLM` alone."""
    folder = Path(load_base(settings).name)
    own = read_vllm_settings(settings, folder)
    with (
        TemporaryDirectory() as files,
        owned_children({**VARIABLES, "OMP_NUM_THREADS": str(own.num_threads)}),
    ):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        write_adapter(adapter, Path(files))
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**own.engine_args(folder)))
        try:
            return asyncio.run(_answer_all(llm, own, files, (asks, repeats)))
        finally:
            llm.shutdown()


async def _answer_all(
    llm: Any, own: Any, files: str, work: tuple[Sequence[Ask], int]
) -> list[float]:
    from vllm import SamplingParams, TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind

    asks, repeats = work
    lora = LoRARequest("benchmark", 1, files) if own.serving == "native" else None
    if lora is None:
        await llm.collective_rpc("receive_adapter", args=(files, True))
    seats = asyncio.Semaphore(own.max_concurrent)

    async def answer(index: int, ask: Ask) -> int:
        params = SamplingParams(
            seed=index,
            max_tokens=ask.num_tokens,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = TokensPrompt(prompt_token_ids=ask.prompt_ids.tolist())
        async with seats:
            outputs = llm.generate(prompt, params, str(index), lora_request=lora)
            (output,) = [output async for output in outputs]
        return len(output.outputs[0].token_ids)

    rates = []
    for _ in range(repeats + 1):
        await llm.reset_prefix_cache()
        start_s = time.perf_counter()
        counts = await asyncio.gather(*(answer(index, ask) for index, ask in enumerate(asks)))
        rates.append(sum(counts) / (time.perf_counter() - start_s))
    return rates[1:]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--serving", nargs="+", default=["fused", "native"])
    parser.add_argument("--num-episodes", type=int, default=1024)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--kv-cache-gib", type=float, default=1.0)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    medians = {}
    for serving in args.serving:
        settings = make_settings(args, serving)
        adapter = make_adapter(settings)
        runner, asks = measure_runner(settings, adapter, args.num_episodes // 8, args.repeats)
        bare = measure_bare(settings, adapter, asks, args.repeats)
        medians[serving] = statistics.median(runner)
        line = {
            "serving": serving,
            "runner_tokens_per_s": round(medians[serving]),
            "bare_tokens_per_s": round(statistics.median(bare)),
            "ratio": round(medians[serving] / statistics.median(bare), 3),
            "runner_runs": [round(rate) for rate in runner],
            "bare_runs": [round(rate) for rate in bare],
            "num_tokens": sum(ask.num_tokens for ask in asks),
            "concurrency": args.concurrency,
        }
        print(json.dumps(line), flush=True)
    if {"fused", "native"} <= medians.keys():
        print(json.dumps({"fused_over_native": round(medians["fused"] / medians["native"], 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
