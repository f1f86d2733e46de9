"""What does an update cost on this GPU, and where do its choices pay?

    python benchmarks/gpu.py
    python benchmarks/gpu.py learner-7b head --minutes 8 --results figures.jsonl

One GPU, or with tiny shapes the CPU (so without a GPU, or by --tiny). One JSON line for each
figure, with the card and torch's version, printed and appended to --results. What is there already
of the same card and version is not measured again, so a part that was cut short, by --minutes or by
the machine, goes on where it was. Weights are random.

    learner-0.5b, -7b, -32b  an update of GRPO on LoRA weights, groups of eight, 700 + 500 ± 60 %:
                             tokens/s (each episode with its prompt), share of the card's peak (a
                             dense product in bfloat16, measured beside it), bytes a token of the
                             micro-batch at the most. As many layers as fit; then scaled to all.
                             Of 0.5b also with micro-batches of four times the tokens
    layouts                  the same at 0.5b with prompts shared, and whole sequences padded
                             rows, and by TRL's loss, in micro-batches of both sizes
    gradients                what the layouts' gradients in float32 and bfloat16, four layers of
                             0.5b, are off by, over those of padded rows in float32 (as norms)
    head                     the output layer of 7b over 4,096 tokens: seconds and errors of its
                             products in float32, in TF32, and with bfloat16 inputs (what learners
                             take); log-probabilities and gradients by how many logits are made at
                             once (`linear_logprobs.MAX_LOGITS`)
    delivery                 the weights of 7b with an adapter fused, and the adapter alone as
                             layers hold it: seconds until they are in the served model
    served                   the share of a small step that a bfloat16 model serves
    vllm                     seconds of a delivery to vLLM, and sampled tokens/s, at 0.5b
    delivery-vllm            the same delivery by its parts: files written, read and hashed by the
                             worker (fused: weights computed and loaded), a slot filled, prompts
                             forgotten
    loop                     whole training runs with vLLM on DB-bench, half of the card for each
                             side, at 0.5b (--model: a saved model of yours, whose rewards are then
                             real ones where they differ): seconds until it samples, by part, with
                             vLLM's cache empty and again with it; an iteration's parts; sampled
                             tokens/s, and those of bare vLLM over the same prompts and lengths;
                             the share of time in which the card computes; memory by process
                             against the estimate; mismatch and probe. By reckoning nine minutes
                             with vLLM's caches empty (--minutes is looked at between its three
                             figures); seconds of the start are printed as they are known

All parts but the last three do without gymnasium, sqlglot, Ray and vLLM: where the package is not
installed, `PYTHONPATH=.` will do, with torch, transformers, peft and pydantic. What cannot be
measured here is a line with `left_out` and the reason; one that fails is a line with `failed`, the
next ones are measured, and the exit status is 1. Models and runs are kept in --folder.
"""

import argparse
import asyncio
import gc
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import small_steps
import torch
import transformers
from gpu_work import (
    DENSE_BFLOAT16_TFLOPS,
    RANK,
    SHAPES,
    TINY_SHAPES,
    Shape,
    count_work,
    fitting_layers,
    learn,
    make_model,
    make_policy,
    make_settings,
    measure_bytes,
    measure_peak,
    measure_s,
    random_weights,
    shape_groups,
)
from torch import nn

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.adapter_slots import slot_state
from agentpeft.policies.engines.fusing import merged_state
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.messages import AdapterVersion, GenerationRequest
from agentpeft.policies.models import linear_logprobs
from agentpeft.policies.models.lora.attach_lora import LoraPolicy
from agentpeft.policies.models.scoring import float_product, takes_bfloat16

if TYPE_CHECKING:  # they are imported where vLLM is
    from adapter_sync import Shapes

    from agentpeft.policies.engines.vllm.settings import VllmSettings

RESULTS = Path(__file__).parent / "results" / "gpu.jsonl"
Values = dict[str, Any]
Figure = tuple[str, Callable[[], Values]]


@dataclass(frozen=True)
class Bench:
    """Where is measured, and how much."""

    device: torch.device
    is_tiny: bool
    max_tokens: int
    """Of a micro-batch."""
    folder: Path
    """Of saved models and the loop's runs, which later calls use."""
    model: Path | None = None
    """The loop's model; None: random weights."""

    @property
    def model_name(self) -> str:
        """What its figures call the loop's model."""
        return "random weights" if self.model is None else self.model.name

    @property
    def is_gpu(self) -> bool:
        """Whether a card is measured."""
        return self.device.type == "cuda"

    @property
    def shapes(self) -> dict[str, Shape]:
        """The models' shapes."""
        return TINY_SHAPES if self.is_tiny else SHAPES

    @property
    def repeats(self) -> int:
        """How often a short figure is measured."""
        return 2 if self.is_tiny else 5

    def peak(self) -> float:
        """Measures the card's operations per second."""
        return measure_peak(self.device, 256 if self.is_tiny else 8192, self.repeats)


class LeftOutError(Exception):
    """A figure cannot be measured here; the message says why."""


def learner_figures(bench: Bench, name: str) -> Iterator[Figure]:
    """Yields the figure of a size; of the smallest another, of larger micro-batches."""
    yield f"learner-{name}", lambda: measure_learner(bench, bench.shapes[name])
    if name == "0.5b":
        large = replace(bench, max_tokens=4 * bench.max_tokens)
        figure = partial(measure_learner, large, bench.shapes[name])
        yield f"learner-{name} {large.max_tokens} tokens", figure


def layout_figures(bench: Bench) -> Iterator[Figure]:
    """Yields the layouts, without gradient checkpointing, in large and in usual micro-batches."""
    shape = bench.shapes["0.5b"]
    large = replace(bench, max_tokens=4 * bench.max_tokens)
    for each, size in ((large, f" {large.max_tokens} tokens"), (bench, "")):
        for layout in ("shared", "padded"):
            yield f"layouts {layout}{size}", partial(measure_learner, each, shape, layout)
        yield f"layouts trl{size}", partial(measure_trl, each, shape)


def measure_learner(bench: Bench, shape: Shape, layout: str = "shared") -> Values:
    """Returns the figures of updates."""
    num_layers = fitting_layers(shape, bench.device)
    model = make_model(shape, bench.device, num_layers=num_layers, is_padded=layout == "padded")
    settings = make_settings(
        bench.max_tokens,
        is_checkpointed=shape.is_checkpointed,
    )
    learner = Learner(settings, make_policy(model, shape.is_checkpointed))
    groups = shape_groups(shape)
    repeats = 2 if shape.num_groups < 16 else 3
    seconds = measure_s(lambda: learn(learner, groups), bench.device, repeats)
    num_bytes = measure_bytes(lambda: learn(learner, groups), bench.device)
    work, peak = count_work(shape, num_layers, groups), bench.peak()
    whole = count_work(shape, shape.num_layers, groups)
    rate = work.operations / seconds
    return {
        "update_s": round(seconds, 4),
        "tokens_per_s": round(whole.tokens * rate / whole.operations, 1),
        "share_of_peak": round(rate / peak, 4),
        "peak_tflops": float(f"{peak / 1e12:.4g}"),
        **share_of_nominal(bench, rate),
        "bytes_per_token": round(num_bytes / bench.max_tokens),
        "num_layers": num_layers,
        "of_layers": shape.num_layers,
        "is_checkpointed": shape.is_checkpointed,
        "max_tokens": bench.max_tokens,
    }


def share_of_nominal(bench: Bench, rate: float) -> Values:
    """Returns what the maker says of the card, if it is known, and the share of it."""
    card = card_name(bench.device)
    known = [name for name in DENSE_BFLOAT16_TFLOPS if name in card]
    if not known:
        return {}
    nominal = DENSE_BFLOAT16_TFLOPS[max(known, key=len)]
    return {"nominal_tflops": nominal, "share_of_nominal": round(rate / 1e12 / nominal, 4)}


def measure_trl(bench: Bench, shape: Shape) -> Values:
    """Returns the same of TRL's loss and gradients over the same episodes."""
    if find_spec("trl") is None:
        raise LeftOutError("trl is not installed")
    from gpu_trl import make_update

    model, groups = make_model(shape, bench.device), shape_groups(shape)
    with TemporaryDirectory() as folder:
        update = make_update(model, groups, RANK, bench.max_tokens, Path(folder))
        seconds = measure_s(update, bench.device, 3)
        num_bytes = measure_bytes(update, bench.device)
    work, peak = count_work(shape, shape.num_layers, groups), bench.peak()
    return {
        "update_s": round(seconds, 4),
        "tokens_per_s": round(work.tokens / seconds, 1),
        "share_of_peak": round(work.operations / seconds / peak, 4),
        "peak_tflops": float(f"{peak / 1e12:.4g}"),
        "bytes_per_token": round(num_bytes / bench.max_tokens),
        "max_tokens": bench.max_tokens,
    }


def gradient_figures(bench: Bench) -> Iterator[Figure]:
    """Yields the layouts' errors, in both types."""
    for dtype in (torch.float32, torch.bfloat16):
        for layout in ("shared", "padded"):
            name = f"gradients {layout} {str(dtype).removeprefix('torch.')}"
            yield name, partial(measure_gradients, bench, layout, dtype)


def measure_gradients(bench: Bench, layout: str, dtype: torch.dtype) -> Values:
    """Returns the norm of the gradients' error over the norm of the gradients."""
    exact = compute_gradients(bench, "padded", torch.float32)
    error = compute_gradients(bench, layout, dtype) - exact
    return {"error": float(f"{(error.norm() / exact.norm()).item():.3g}")}


def compute_gradients(bench: Bench, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """Returns the gradients of an update, of all the adapter's weights, one behind the other."""
    shape = bench.shapes["0.5b"]
    num_layers, is_padded = min(4, shape.num_layers), layout == "padded"
    model = make_model(shape, bench.device, num_layers=num_layers, is_padded=is_padded)
    policy = make_policy(model.to(dtype))
    policy.load_weights(random_weights({n: w.shape for n, w in policy.adapter_weights().items()}))
    settings = make_settings(
        bench.max_tokens,
        computes_in_bfloat16=dtype == torch.bfloat16,
        max_grad_norm=1e9,
    )
    learn(Learner(settings, policy), shape_groups(shape)[:2])
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    return torch.cat([grad.flatten().double() for grad in grads])


def head_figures(bench: Bench) -> Iterator[Figure]:
    """Yields products one by one, then the whole of `linear_logprobs`."""
    for product in ("logits", "sums"):
        for way in ("float32", "tf32", "bfloat16"):
            yield f"head {product} {way}", partial(measure_product, bench, product, way)
    exponents = (12,) if bench.is_tiny else range(20, 29, 2)
    for bonus in (False, True):
        yield f"head whole float32 {bonus=}", partial(measure_head, bench, bonus, None, True)
        for exponent in exponents:
            name = f"head whole 2^{exponent} logits {bonus=}"
            yield name, partial(measure_head, bench, bonus, exponent, False)


def draw_head(bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns states (U, H) and weights (V, H) in bfloat16, whose logits are about 2."""
    shape = bench.shapes["7b"]
    num_rows = 32 if bench.is_tiny else 4096
    generator = torch.Generator(bench.device).manual_seed(0)
    draw = partial(torch.randn, device=bench.device, generator=generator)
    states = draw(num_rows, shape.hidden).bfloat16()
    return states, (draw(shape.vocabulary, shape.hidden) * 2 / shape.hidden**0.5).bfloat16()


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Within it products of float32 are in TF32 where the name is "high"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure_product(bench: Bench, product: str, way: str) -> Values:
    """Returns seconds of a slice of a product, and the largest error over the largest result."""
    if way != "float32" and bench.device.type != "cuda":
        raise LeftOutError(f"{way} products with sums in float32 are a GPU's")
    states, weight = draw_head(bench)
    part = weight[: linear_logprobs.slice_size(len(states), bench.device)]
    left, right = (states, part.T) if product == "logits" else (states @ part.T, part)
    if product == "sums":
        left = left.float().softmax(-1)
    exact = left[:64].double() @ right.double()
    as_it_is = way == "bfloat16"
    operands = (left, right) if as_it_is else (left.float(), right.float())
    with matmul_precision("high" if way == "tf32" else "highest"):
        compute = partial(float_product, *operands)
        error = (compute()[:64].double() - exact).abs().max() / exact.abs().max()
        seconds = measure_s(compute, bench.device, bench.repeats)
    return {"slice_s": round(seconds, 6), "error": float(f"{error.item():.3g}")}


def measure_head(bench: Bench, bonus: bool, exponent: int | None, is_float: bool) -> Values:
    """Returns seconds and bytes of log-probabilities and gradients."""
    states, weight = draw_head(bench)
    head = nn.Linear(1, 1, bias=False)
    head.weight = nn.Parameter(weight.float() if is_float else weight, requires_grad=False)
    targets = torch.arange(len(states), device=bench.device)
    rows, states = targets.clone(), states.requires_grad_()

    def compute() -> torch.Tensor:
        logprobs, entropy = linear_logprobs.linear_logprobs(
            states, head, rows, targets, has_entropy_gradient=bonus
        )
        (grad,) = torch.autograd.grad((logprobs + entropy).sum(), states)
        return grad

    kind, limits = bench.device.type, linear_logprobs.MAX_LOGITS
    before = limits[kind]
    limits[kind] = before if exponent is None else 2**exponent
    try:
        seconds = measure_s(compute, bench.device, bench.repeats)
        num_bytes = measure_bytes(compute, bench.device)
    finally:
        limits[kind] = before
    return {
        "head_s": round(seconds, 5),
        "us_per_token": round(1e6 * seconds / len(states), 3),
        "bytes_per_token": round(num_bytes / len(states)),
        "takes_bfloat16": takes_bfloat16(head.weight.dtype, bench.device),
    }


def delivery_figures(bench: Bench) -> Iterator[Figure]:
    """Yields what a runner does with an adapter, by ways of serving, and the hash of it."""
    for way in ("fused", "native", "hash"):
        yield f"delivery {way}", partial(measure_delivery, bench, way)


def measure_delivery(bench: Bench, way: str) -> Values:
    """Returns seconds until the served weights are in place."""
    model = make_model(bench.shapes["7b"], bench.device)
    if way == "native":
        policy = make_policy(model)
        assert isinstance(policy, LoraPolicy)
        state = policy.base.model.state_dict()
        adapter = make_adapter({n: w.shape for n, w in policy.adapter_weights().items()})
        serve = partial(slot_state, state, adapter, policy.scaling)
    else:
        state = model.state_dict()
        linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        shapes: dict[str, tuple[int, ...]] = {}
        for name in linear.keys() - {"lm_head"}:
            out, into = linear[name].weight.shape
            prefix = f"base_model.model.{name}"
            shapes[f"{prefix}.lora_A.weight"] = (RANK, into)
            shapes[f"{prefix}.lora_B.weight"] = (out, RANK)
        adapter = make_adapter(shapes)
        serve = partial(merged_state, state, adapter)
    num_mib = sum(weight.nbytes for weight in adapter.weights.values()) / 2**20
    if way == "hash":
        version = partial(make_version, 1, "gpu", adapter.weights, 2.0)
        return {"hash_s": round(measure_s(version, bench.device, 2), 5), "mib": round(num_mib, 2)}

    def deliver() -> float:
        weights, effect = serve()
        for name, weight in weights.items():
            state[name].copy_(weight)
        return effect.share

    with torch.no_grad():
        share = deliver()
        seconds = measure_s(deliver, bench.device, 2)
    return {"delivery_s": round(seconds, 4), "mib": round(num_mib, 2), "served": round(share, 4)}


def make_adapter(shapes: dict[str, tuple[int, ...]]) -> AdapterVersion:
    """Returns random weights of an adapter."""
    return make_version(0, "gpu", random_weights(shapes), 2.0)


def served_figures(bench: Bench) -> Iterator[Figure]:
    """Yields shares after some numbers of steps."""
    width = 64 if bench.is_tiny else 1024
    for steps in (1,) if bench.is_tiny else (1, 10, 50):
        name = f"served {steps} steps"
        yield name, partial(small_steps.measure, steps, 1e-5, width, bench.device)


def vllm_figures(bench: Bench) -> Iterator[Figure]:
    """Yields deliveries and sampling, by ways of serving."""
    for serving in ("fused", "native"):
        yield f"vllm {serving}", partial(measure_vllm, bench, serving)


def check_vllm() -> None:
    """Raises: LeftOutError where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise LeftOutError("vllm is not installed")


def make_vllm_settings(bench: Bench, serving: Literal["fused", "native"]) -> "VllmSettings":
    """Returns what an engine alone on the card is asked for."""
    from agentpeft.policies.engines.vllm.settings import VllmSettings

    return VllmSettings(
        serving=serving,
        dtype="bfloat16" if bench.is_gpu else "float32",
        max_context_tokens=256,
        max_concurrent=8 if bench.is_tiny else 256,
        max_rank=RANK,
        kv_cache_bytes=None if bench.is_gpu else 2**28,
        gpu_share=float(bench.is_gpu),
    )


@cache
def save_vllm_model(bench: Bench) -> tuple[Path, "Shapes"]:
    """Returns the folder of a model of random weights, and the shapes of its linear layers.

    All figures and calls take the same one, since the key of vLLM's cache holds its path.
    """
    import adapter_sync

    name = "tiny" if bench.is_tiny else "0.5b"
    folder = bench.folder / f"vllm-model-{name}"
    return folder, adapter_sync.save_model(name, folder)


def measure_vllm(bench: Bench, serving: Literal["fused", "native"]) -> Values:
    """Returns seconds of deliveries to an engine, and how fast it samples."""
    check_vllm()
    import adapter_sync

    from agentpeft.policies.engines.vllm.start import start_engine

    settings = make_vllm_settings(bench, serving)
    folder, shapes = save_vllm_model(bench)
    num_episodes, num_tokens = (16, 8) if bench.is_tiny else (1024, 128)
    with closing(start_engine(folder, [0], settings)) as engine:
        seconds = adapter_sync.measure(engine, shapes, RANK, bench.repeats)
        rng = np.random.default_rng(0)
        requests = [
            GenerationRequest(f"s{number}", ids, (number,), 1.0, num_tokens)
            for number, ids in enumerate(rng.integers(1, 500, (num_episodes, 64)))
        ]
        engine.update_sessions(opened=[request.session for request in requests])

        async def sample() -> int:
            done = await asyncio.gather(*map(engine.generate, requests))
            return sum(len(each.token_ids) for each in done)

        for number in (1, 2):  # the first time, kernels are still chosen
            # Another adapter: the prompts of the time before are forgotten
            engine.load_adapter(adapter_sync.make_adapter(bench.repeats + number, RANK, shapes))
            start_s = time.perf_counter()
            sampled = asyncio.run(sample())
            sampling_s = time.perf_counter() - start_s
    return {
        "delivery_s": round(float(np.median(seconds)), 4),
        "sampled_tokens_per_s": round(sampled / sampling_s, 1),
        "num_sampled_tokens": sampled,
    }


def delivery_vllm_figures(bench: Bench) -> Iterator[Figure]:
    """Yields a delivery's parts, by ways of serving."""
    for serving in ("fused", "native"):
        yield f"delivery-vllm {serving}", partial(measure_delivery_parts, bench, serving)


def measure_delivery_parts(bench: Bench, serving: Literal["fused", "native"]) -> Values:
    """Returns the median seconds of a delivery to vLLM, and of what the process is asked for."""
    check_vllm()
    import adapter_sync

    from agentpeft.policies.engines.vllm.engine import VllmEngine
    from agentpeft.policies.engines.vllm.start import start_process

    settings = make_vllm_settings(bench, serving)
    taken: dict[str, list[float]] = {}
    folder, shapes = save_vllm_model(bench)
    process = start_process(folder, settings)
    for name in ("receive", "fill_slot", "forget_prompts"):
        vars(process)[name] = timed(taken.setdefault(name, []), getattr(process, name))
    with closing(VllmEngine(process, [0], settings)) as engine:
        for number in range(bench.repeats + 1):
            adapter = adapter_sync.make_adapter(number, RANK, shapes)
            start_s = time.perf_counter()
            engine.load_adapter(adapter)
            taken.setdefault("whole", []).append(time.perf_counter() - start_s)
    medians = {name: float(np.median(seconds[1:])) for name, seconds in taken.items() if seconds}
    whole = medians.pop("whole")
    values = {f"{name}_s": round(seconds, 4) for name, seconds in medians.items()}
    rest = round(whole - sum(medians.values()), 4)
    return {"delivery_s": round(whole, 4), **values, "write_and_rest_s": rest}


def timed(
    seconds: list[float], method: Callable[..., Coroutine[Any, Any, Any]]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Returns the method, whose seconds are then added to the list."""

    async def call(*args: Any) -> Any:
        start_s = time.perf_counter()
        result = await method(*args)
        seconds.append(time.perf_counter() - start_s)
        return result

    return call


def loop_figures(bench: Bench) -> Iterator[Figure]:
    """Yields a run, a second start with vLLM's cache, and bare vLLM."""
    yield "loop", partial(measure_loop, bench)
    yield "loop again", partial(measure_second_start, bench)
    yield "loop bare", partial(measure_bare_vllm, bench)


def make_loop_model(bench: Bench) -> Path:
    """Returns the saved model that the loop trains, which is made where there is none."""
    if bench.model is not None:
        return bench.model
    folder = bench.folder / f"model-{'tiny' if bench.is_tiny else '0.5b'}"
    if (folder / "tokenizer_config.json").is_file():
        return folder
    gymnasium = importlib.import_module("gymnasium")
    from agentpeft.policies.models.tiny import train_tokenizer
    from agentpeft.policies.settings.config import TinySettings

    env = gymnasium.make("AgentPEFT/DBBench-v0", split="train")
    prompts = [env.reset(seed=seed)[0] for seed in range(64)]
    tokenizer = train_tokenizer(prompts, TinySettings(vocab_size=1000))
    # vLLM's kernels for CPUs take heads of 32 numbers and more
    shape = replace(bench.shapes["0.5b"], hidden=128, head_size=32) if bench.is_tiny else None
    model = make_model(shape or bench.shapes["0.5b"], bench.device)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measure_loop(bench: Bench, *words: str, is_again: bool = False) -> Values:
    """Returns the figures of a run, with memory's estimate.

    What bare vLLM samples is what the first run has sampled, so one `is_again` does not note it.
    """
    check_vllm()
    import gpu_loop

    from agentpeft.launch.costs.resources import estimate_memory
    from agentpeft.launch.run.run_folder import read_start

    model = make_loop_model(bench)
    words = (*(gpu_loop.ON_GPU if bench.is_gpu else gpu_loop.TINY), *words)
    notes = "requests-again.json" if is_again else gpu_loop.REQUESTS
    values = gpu_loop.measure_run(bench.folder, model, words, is_gpu=bench.is_gpu, notes=notes)
    settings = read_start([gpu_loop.CONFIG], [*words, f"model.name={model}"]).settings
    mib = estimate_memory(settings)
    return values | {
        "estimate_mib": {name: round(mib[name]) for name in ("learner", "env_runner")},
        "has_real_weights": bench.model is not None,
        "model": bench.model_name,
    }


def measure_second_start(bench: Bench) -> Values:
    """Returns the figures of a run of two iterations, which starts with vLLM's cache."""
    if not bench.is_gpu:
        raise LeftOutError("vLLM compiles nothing on a CPU")
    need_loop(bench)
    return measure_loop(bench, "training.num_iterations=2", is_again=True)


def need_loop(bench: Bench) -> None:
    """Raises: LeftOutError where no loop has left its files in this folder."""
    import gpu_loop

    if not (bench.folder / gpu_loop.REQUESTS).is_file():
        raise LeftOutError("no loop was measured in this --folder")


def measure_bare_vllm(bench: Bench) -> Values:
    """Returns how fast bare vLLM samples what the loop sampled, with the same share of memory."""
    check_vllm()
    import gpu_loop

    from agentpeft.launch.run.run_folder import read_start
    from agentpeft.policies.engines.vllm.settings import read_vllm_settings
    from agentpeft.policies.engines.vllm.start import FLASHINFER_SAMPLER, make_variables
    from agentpeft.policies.engines.vllm.weight_files import CheckpointFiles, write_adapter

    need_loop(bench)
    model = make_loop_model(bench)
    words = [*(gpu_loop.ON_GPU if bench.is_gpu else gpu_loop.TINY), f"model.name={model}"]
    settings = replace(
        read_vllm_settings(read_start([gpu_loop.CONFIG], words).settings, model), serving="native"
    )
    sizes = CheckpointFiles(model, torch.float32, "cpu").shapes()
    shapes: dict[str, tuple[int, ...]] = {}
    for name, size in sizes.items():
        if name.endswith("_proj.weight"):
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            shapes[f"{prefix}.lora_A.weight"] = (settings.max_rank, size[1])
            shapes[f"{prefix}.lora_B.weight"] = (size[0], settings.max_rank)
    adapter = bench.folder / gpu_loop.ADAPTER
    adapter.mkdir(exist_ok=True)
    write_adapter(make_adapter(shapes), adapter)
    arguments = settings.engine_args(model)
    for name in OURS:  # what a run asks of vLLM besides
        arguments.pop(name, None)
    variables = {n: v for n, v in make_variables(settings).items() if n == FLASHINFER_SAMPLER}
    values = gpu_loop.measure_bare(bench.folder, model, arguments, variables)
    return values | {"model": bench.model_name}


OURS = ("model", "hf_overrides", "logprobs_mode", "worker_extension_cls")
"""Arguments of vLLM that bare vLLM is not given; without the second it compiles once more."""


PARTS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    **{f"learner-{name}": partial(learner_figures, name=name) for name in SHAPES},
    "layouts": layout_figures,
    "gradients": gradient_figures,
    "head": head_figures,
    "delivery": delivery_figures,
    "served": served_figures,
    "vllm": vllm_figures,
    "delivery-vllm": delivery_vllm_figures,
    "loop": loop_figures,
}


def card_name(device: torch.device) -> str:
    """Returns the card's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def measure(figure: Callable[[], Values]) -> Values:
    """Returns a figure's values, or why there are none."""
    try:
        return figure()
    except LeftOutError as error:
        return {"left_out": str(error)}
    except torch.OutOfMemoryError as error:
        return {"left_out": f"memory does not suffice: {str(error).partition('.')[0]}"}
    except (RuntimeError, SettingsError) as error:  # of a run, an engine or a kernel
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {str(error)[-400:]}"}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main() -> int:
    """Measures the parts that are asked for; returns 1 if a figure failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    parser.add_argument("--tiny", action="store_true", help="small shapes, on the CPU")
    parser.add_argument("--minutes", type=float, default=8.0, help="of a part (8)")
    parser.add_argument("--results", type=Path, help=f"file to append to ({RESULTS.name})")
    parser.add_argument("--model", type=Path, help="a saved model for the loop (random weights)")
    parser.add_argument("--folder", type=Path, help="of saved models and runs (a temporary one)")
    parser.add_argument("--again", action="store_true", help="measures what is there as well")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {sorted(unknown)[0]!r}: {', '.join(PARTS)}")
    is_tiny = options.tiny or not torch.cuda.is_available()
    if is_tiny:
        torch.set_num_threads(1)  # several would only wait for each other
    device = torch.device("cpu" if is_tiny else "cuda")
    folder = options.folder or Path(gettempdir(), f"agentpeft-loop-{device.type}")
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(device, is_tiny, 128 if is_tiny else 8192, folder, options.model)
    results = options.results or (None if is_tiny else RESULTS)
    run = {
        "card": card_name(bench.device),
        "is_tiny": is_tiny,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    done = set() if options.again else read_done(results, run, bench.model_name)
    has_failed = False
    for name in options.parts or PARTS:
        start_s = time.monotonic()
        todo = [each for each in PARTS[name](bench) if each[0] not in done]
        for number, (title, figure) in enumerate(todo):
            if time.monotonic() - start_s > 60 * options.minutes:
                print(json.dumps({"stopped": name, "figures_left": len(todo) - number}), flush=True)
                break
            begun_s = time.monotonic()
            values = measure(figure)
            has_failed |= "failed" in values
            row = {"figure": title, **values, "took_s": round(time.monotonic() - begun_s, 1), **run}
            print(json.dumps(row), flush=True)
            if results is not None:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    return int(has_failed)


def read_done(results: Path | None, run: Values, model: str) -> set[str]:
    """Returns the figures that a file has of such a run; not what was left out or has failed.

    Those of a loop are of a model too.
    """
    if results is None or not results.is_file():
        return set()
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    same = (r for r in rows if run.items() <= r.items() and r.get("model", model) == model)
    return {row["figure"] for row in same if not row.keys() & {"left_out", "failed"}}


if __name__ == "__main__":
    sys.exit(main())
