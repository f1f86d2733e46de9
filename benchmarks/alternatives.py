"""Would a library do what we wrote ourselves, and how fast?

    python benchmarks/alternatives.py runtimes   # crun and runc against our bubblewrap sandbox
    python benchmarks/alternatives.py batching   # transformers' continuous batching, our engine
    python benchmarks/alternatives.py threads    # ThreadPoolExecutor against our lanes

Each prints one JSON line for each repeat, both sides measured in turn, and a last one with the
median, smallest and largest ratio of theirs to ours. All sides do the same work; what the library
would need besides to replace ours (confined grading, limits of time) is left out, so its figure is
the most that it could come to. `runtimes` needs root, and crun and runc installed.
"""

import argparse
import asyncio
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium
from os_throughput import Play, make_plays, measure, play_gold

from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.sandboxes.identity import find_identity
from agentpeft.envs.os_interaction.sandboxes.images import prepare_root

_DURATION_S = 6.0
_NUM_REQUESTS = 256
_NUM_NEW_TOKENS = 48
_NUM_CALLS = 256
_NUM_ROUNDS = 100

Measure = Callable[[], float]


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=cwd, stdin=subprocess.DEVNULL)


class RuntimePlayer:
    """Plays an episode in a container of its own, over a root file system that is there already.

    An overlay in memory, `run --detach`, an `exec` each for set-up, gold and one check, `delete`.
    """

    def __init__(self, runtime: str, folder: Path) -> None:
        self._folder, self._ids = folder, itertools.count()
        self._runtime = runtime
        self._lower = prepare_root(None, find_identity()) / "root"
        _run(runtime, "spec", cwd=folder)
        path = folder / "config.json"
        spec = json.loads(path.read_text())
        spec["root"] = {"path": str(folder / "root"), "readonly": False}
        # The files are owned by the sandboxes' ids, and the scripts change owners
        granted = ["CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN", "CAP_SETUID", "CAP_SETGID"]
        capabilities = dict.fromkeys(("bounding", "effective", "permitted"), granted)
        process = {"terminal": False, "args": ["sleep", "infinity"], "capabilities": capabilities}
        spec["process"] |= process
        path.write_text(json.dumps(spec))
        for name in ("layers", "root"):
            (folder / name).mkdir()

    def __call__(self, play: Play) -> None:
        """Plays it."""
        name = f"agentpeft-{self._runtime}-{next(self._ids)}"
        layers, root = self._folder / "layers", self._folder / "root"
        _run("mount", "-t", "tmpfs", "tmpfs", str(layers))
        (layers / "upper").mkdir()
        (layers / "work").mkdir()
        options = f"lowerdir={self._lower},upperdir={layers}/upper,workdir={layers}/work"
        _run("mount", "-t", "overlay", "overlay", "-o", options, str(root))
        try:
            subprocess.run(
                [self._runtime, "run", "--detach", "--bundle", str(self._folder), name],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            scripts = [script for script in (play.task.setup, play.task.gold) if script is not None]
            for command in (*(script.to_command() for script in scripts), "test -e /etc/passwd"):
                _run(self._runtime, "exec", name, "bash", "-c", f"{command}\ntrue")
        finally:
            subprocess.run([self._runtime, "delete", "--force", name], check=False)
            _run("umount", str(root))
            _run("umount", str(layers))


@contextmanager
def runtimes():
    """Yields episodes per second of our sandbox and of each runtime's."""
    env = gymnasium.make("AgentPEFT/OSInteraction-v0", sandbox="bubblewrap").unwrapped
    assert isinstance(env, OSInteractionEnv)
    plays = make_plays("bubblewrap")
    with TemporaryDirectory() as folder:
        sides: dict[str, Measure] = {
            "ours": lambda: measure([lambda play: play_gold(env, play)], plays, _DURATION_S)
        }
        for runtime in ("crun", "runc"):
            if shutil.which(runtime):
                (Path(folder) / runtime).mkdir()
                player = RuntimePlayer(runtime, Path(folder) / runtime)
                try:
                    player(plays[0])
                except subprocess.CalledProcessError as error:  # crun: not on hybrid control groups
                    print(f"{runtime} is left out: {error}", file=sys.stderr)
                else:
                    sides[runtime] = lambda player=player: measure([player], plays, _DURATION_S)
        yield sides
    env.close()


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
    from agentpeft.policies.rollout.lanes import Lanes

    def call() -> int:
        return sum(range(1_000))

    async def use_lanes() -> None:
        lanes = Lanes(64, 60.0)
        for _ in range(_NUM_ROUNDS):
            await asyncio.gather(*(lanes.call(call) for _ in range(_NUM_CALLS)))
        lanes.close()

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

    yield {"ours": lambda: rate(use_lanes), "executor": lambda: rate(use_executor)}


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["runtimes", "batching", "threads"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    make = {"runtimes": runtimes, "batching": batching, "threads": threads}[options.what]
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
