"""How much faster does the embedded engine sample with an adapter merged than beside its base?

    python benchmarks/merged_vs_adapter.py

The built-in model (untrained, so that nearly every turn has `--max-new-tokens`) plays Arithmetic in
one process, by turns with the adapter in the weights, as a merged model has it, and in layers of
its own. One JSON line: tokens per second of CPU time (one thread, so that others on the machine
matter little) of each in `--repeats` runs after one that is not counted,
and the ratios of the pairs, lowest, median and highest.
"""

import argparse
import json
import statistics
import time
from contextlib import ExitStack, closing

import numpy as np
import torch

from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings

SERVINGS = ("fused", "native")


def make_runner(args: argparse.Namespace, serving: str) -> EnvRunner:
    """Returns a runner that serves an adapter of all linear layers, whose B is not zero."""
    settings = Settings(
        num_threads=1,
        environment={"kwargs": {"num_digits": 3}},
        env_runners={
            "num_env_runners": 0,
            "serving": serving,
            "max_new_tokens": args.max_new_tokens,
        },
    )
    policy, rng = attach_lora(load_base(settings), settings.lora), np.random.default_rng(0)
    weights = {
        name: (weight + 0.02 * rng.normal(size=weight.shape)).astype(np.float32)
        for name, weight in policy.adapter_weights().items()
    }
    runner = EnvRunner(settings)
    runner.load_adapter(make_version(1, "benchmark", weights, policy.scaling))
    return runner


def main() -> None:
    """Measures both by turns and prints the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-groups", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rates: dict[str, list[float]] = {serving: [] for serving in SERVINGS}
    with ExitStack() as stack:
        runners = {s: stack.enter_context(closing(make_runner(args, s))) for s in SERVINGS}
        for run in range(args.repeats + 1):
            positions = range(run * args.num_groups, (run + 1) * args.num_groups)
            for serving, runner in runners.items():
                start_s = time.process_time()
                report = runner.sample([GroupRequest(position, 8) for position in positions])[1]
                rates[serving].append(
                    report.counts.num_sampled_tokens / (time.process_time() - start_s)
                )
    merged, beside = (rates[serving][1:] for serving in SERVINGS)
    ratios = [a / b for a, b in zip(merged, beside, strict=True)]
    line = {
        "merged_tokens_per_s": [round(rate) for rate in merged],
        "adapter_tokens_per_s": [round(rate) for rate in beside],
        "ratio": [round(f(ratios), 2) for f in (min, statistics.median, max)],
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
