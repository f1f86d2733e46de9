"""What `gpu.py` measures: models of three sizes, groups of episodes, floating-point operations.

Nothing here needs gymnasium, sqlglot, Ray or vLLM.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from counts import make_groups, most_bytes_held
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.messages import EpisodeGroup
from agentpeft.policies.models.lora.attach_lora import Policy, attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.models.scoring import use_float_head
from agentpeft.policies.settings.config import (
    LearnerSettings,
    LoraSettings,
    Settings,
    TrainingSettings,
)

DENSE_BFLOAT16_TFLOPS = {
    "A100": 312.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "L4": 121.0,
    "L40S": 362.0,
}
"""What makers say of their cards, without sparsity, by a part of torch's name for them."""


@dataclass(frozen=True)
class Shape:
    """A model's widths, and the update that it is measured with.

    `profile`: tokens of a prompt and of an answer, and the spread of these; groups of eight.
    """

    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocabulary: int
    is_tied: bool
    has_qk_norm: bool
    profile: tuple[int, int, float] = (700, 500, 0.6)
    num_groups: int = 16
    is_checkpointed: bool = False

    @property
    def layer_weights(self) -> int:
        """The weights of a layer's linear layers, which an adapter is on."""
        return sum(out * into for out, into in self.linear_layers)

    @property
    def linear_layers(self) -> list[tuple[int, int]]:
        """Outputs and inputs of a layer's linear layers."""
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        wide = [(self.intermediate, self.hidden)] * 2 + [(self.hidden, self.intermediate)]
        return [
            (queries, self.hidden),
            *[(keys, self.hidden)] * 2,
            (self.hidden, queries),
            *wide,
        ]


SHAPES = {
    "0.5b": Shape(896, 4864, 24, 14, 2, 64, 151_936, True, False),  # Qwen2.5-0.5B
    "7b": Shape(3584, 18_944, 28, 28, 4, 128, 152_064, False, False, is_checkpointed=True),
    "32b": Shape(
        5120, 25_600, 64, 64, 8, 128, 151_936, False, True, num_groups=4, is_checkpointed=True
    ),  # Qwen3-32B
}
TINY_SHAPES = {
    name: replace(
        Shape(32, 64, 2, 4, 2, 8, 1024, shape.is_tied, shape.has_qk_norm),
        profile=(12, 6, 0.5),
        num_groups=2,
        is_checkpointed=shape.is_checkpointed,
    )
    for name, shape in SHAPES.items()
}
RANK = 16
_OPERATIONS = 2
"""Of a weight and a number: a product and a sum."""


def make_model(
    shape: Shape, device: torch.device, *, num_layers: int | None = None, is_padded: bool = False
) -> PreTrainedModel:
    """Returns random weights in bfloat16, made on the device; `is_padded` takes padded rows."""
    options: dict[str, Any] = {"head_dim": shape.head_size} if shape.has_qk_norm else {}
    config = (Qwen3Config if shape.has_qk_norm else Qwen2Config)(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=num_layers or shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=8192,
        tie_word_embeddings=shape.is_tied,
        **options,
    )
    classes = {
        (False, False): Qwen2ForCausalLM,
        (True, False): Qwen3ForCausalLM,
        (False, True): _PaddedQwen2,
    }
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model: PreTrainedModel = classes[shape.has_qk_norm, is_padded](config)
    finally:
        torch.set_default_dtype(before)
    return model.train(False)


class _PaddedQwen2(Qwen2ForCausalLM):
    """Hands nothing on to its attention, as models that cannot be packed."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False, **_: Any) -> Any:
        """Returns what the model gives without packing."""
        return super().forward(input_ids=input_ids, use_cache=use_cache)


def make_policy(model: PreTrainedModel, is_checkpointed: bool = False) -> Policy:
    """Returns the model with an adapter on all linear layers, as a learner has it."""
    use_float_head(model)
    base = PolicyBase(model, None, "gpu")  # no text is read
    return attach_lora(base, LoraSettings(rank=RANK), gradient_checkpointing=is_checkpointed)


def make_settings(
    max_tokens: int,
    *,
    is_checkpointed: bool = False,
    computes_in_bfloat16: bool = True,
    max_grad_norm: float = 1.0,
) -> Settings:
    """Returns a learner's settings; no environment is looked up, as there may be none."""
    return Settings.model_construct(
        training=TrainingSettings(algorithm="grpo", max_grad_norm=max_grad_norm),
        lora=LoraSettings(rank=RANK),
        learners=LearnerSettings(
            autocast="bfloat16" if computes_in_bfloat16 else "off",
            gradient_checkpointing=is_checkpointed,
            max_tokens_per_micro_batch=max_tokens,
        ),
    )


def shape_groups(shape: Shape) -> list[EpisodeGroup]:
    """Returns the groups of an update."""
    return make_groups(shape.profile, shape.num_groups)


@dataclass(frozen=True)
class Work:
    """What an update is asked: `tokens` of whole sequences, and the operations that it needs.

    These count a group's prompt once, forwards and for gradients of inputs, and of the adapter's
    weights; of the output layer sampled tokens alone; nothing for padding or checkpointing.
    """

    tokens: int
    operations: float


def count_work(shape: Shape, num_layers: int, groups: Sequence[EpisodeGroup]) -> Work:
    """Returns the work of an update of the groups, each of whose episodes is one turn."""
    tokens = distinct = pairs = sampled = 0
    for group in groups:
        prompt = len(group.trajectories[0].prompt_ids)
        answers = [len(each.token_ids) for each in group.trajectories]
        fed = [answer - 1 for answer in answers]  # nothing follows the last token
        tokens += sum(prompt + answer for answer in answers)
        sampled += sum(answers)
        distinct += prompt + sum(fed)
        pairs += prompt * (prompt + 1) // 2
        pairs += sum(prompt * each + each * (each + 1) // 2 for each in fed)
    adapter = sum(RANK * (out + into) for out, into in shape.linear_layers)
    in_layers = distinct * (2 * shape.layer_weights + 3 * adapter)
    # Scores and means of values, and twice that for their gradients
    in_attention = 3 * 2 * pairs * shape.num_heads * shape.head_size
    in_head = 2 * sampled * shape.hidden * shape.vocabulary
    return Work(tokens, _OPERATIONS * (num_layers * (in_layers + in_attention) + in_head))


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_s(compute: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Returns the median of the seconds, after a run that is not counted."""
    compute()
    seconds = []
    for _ in range(repeats):
        synchronize(device)
        start_s = time.perf_counter()
        compute()
        synchronize(device)
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def measure_peak(device: torch.device, size: int, repeats: int) -> float:
    """Returns the operations per second of a dense product in bfloat16, size x size each."""
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    seconds = measure_s(lambda: left @ right, device, repeats)
    return _OPERATIONS * size**3 / seconds


def measure_bytes(compute: Callable[[], object], device: torch.device) -> int:
    """Returns the most bytes that are held at once beyond those that are held before."""
    if device.type != "cuda":
        return most_bytes_held(compute)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    compute()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def fitting_layers(shape: Shape, device: torch.device) -> int:
    """Returns how many layers leave a fifth of the free memory to activations and optimizer."""
    if device.type != "cuda":
        return shape.num_layers
    free, _ = torch.cuda.mem_get_info(device)
    adapter = sum(RANK * (out + into) for out, into in shape.linear_layers)
    of_ends = 2 * shape.hidden * shape.vocabulary * (1 if shape.is_tied else 2)
    per_layer = 2 * shape.layer_weights + 16 * adapter
    return min(shape.num_layers, int((0.8 * free - of_ends) // per_layer))


def learn(learner: Learner, groups: Sequence[EpisodeGroup]) -> None:
    """Takes one update. Raises: RuntimeError if memory ran out, for then figures are others'."""
    metrics = learner.update(groups)
    if metrics["train/num_oom_retries"]:
        raise torch.OutOfMemoryError("micro-batches had to be halved")


def random_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns an adapter's weights of which none is zero."""
    rng = np.random.default_rng(0)
    return {n: 0.01 * rng.standard_normal(shape, np.float32) for n, shape in shapes.items()}
