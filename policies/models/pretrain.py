"""Makes the tiny model and pretrains it: all its weights imitate the oracle.

`warm_start.num_steps` means these steps for the tiny model. For any other model it means supervised
steps of the learner with the adapter (`Learner.sft_update`), which this module has no part in.

Episodes and their trajectories are those that the learner imitates, but the batches are not made by
`learning.passes.micro_batches`, whose gradients differ in rounding: cached models, and all that was
measured with them, would change. Nor is the optimizer the learner's.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.policies.messages import EpisodeGroup, Ids, Mask
from agentpeft.policies.models.policy_base import (
    FINGERPRINT_KEY,
    PolicyBase,
    Progress,
    compute_fingerprint,
)
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.rollout.chat import ChatFormat, make_chat
from agentpeft.policies.rollout.oracle import (
    WarmStartBatches,
    oracle_texts,
    warm_start_environments,
)
from agentpeft.policies.settings.config import Settings, WarmStartSettings
from agentpeft.policies.settings.tasks import SUCCESS_WINDOW

_NUM_CORPUS_TASKS = 1000
_MAX_CORPUS_CHARS, _MAX_TEXT_CHARS = 50_000_000, 20_000
"""The vocabulary is learnt from no more: an environment may have prompts of many MB."""
_MAX_TOKENS = 1024  # larger ones no longer fit the processor's caches, and are padded more
_MANY_STEPS = 100
"""For fewer, a process that makes batches takes longer to start than it saves."""
_WARMUP = 0.05
_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the steepest at zero: small singular values grow first
_NUM_ORTHOGONALIZING_STEPS = 5
IGNORED = -100  # cross entropy's own word for positions without a target


class PretrainSchedule:
    """The learning rate's factor in pretraining, its stage, and when to stop.

    The rate warms up over a twentieth of `num_steps`, is constant, and falls linearly over the last
    `decay` of them; once the mean success over 8 batches of the last stage has reached
    `target_success`, it begins to fall at once, over `decay` of the steps taken so far. Source: Hu
    et al., "MiniCPM", 2024, section 4 (warm-up, stable, decay).

    >>> schedule = PretrainSchedule(WarmStartSettings(num_steps=100))
    >>> for _ in range(95): schedule.step(0.0)
    >>> schedule.lr_factor
    0.5
    """

    def __init__(self, warm_start: WarmStartSettings) -> None:
        num_steps = warm_start.num_steps
        self.num_done = self.stage = 0
        self._num_warmup = max(1, round(_WARMUP * num_steps))
        self._decay = warm_start.decay
        self._decay_at, self._end = num_steps - round(self._decay * num_steps), num_steps
        self._stage_ends, self._promote_at = warm_start.stage_ends, warm_start.promote_at
        self._target = warm_start.target_success
        self._recent: deque[float] = deque(maxlen=SUCCESS_WINDOW)

    @property
    def lr_factor(self) -> float:
        """The factor of the coming step's learning rate."""
        warmup = (self.num_done + 1) / self._num_warmup
        decay = (self._end - self.num_done) / max(1, self._end - self._decay_at)
        return min(1.0, warmup, decay)

    @property
    def is_done(self) -> bool:
        """Whether all steps have been taken."""
        return self.num_done >= self._end

    def step(self, success: float) -> None:
        """Counts a step whose batch had this share of episodes right."""
        self.num_done += 1
        self._recent.append(success)
        if self.stage < len(self._stage_ends) - 1:
            is_late = self.num_done >= self._stage_ends[self.stage]
            if is_late or self._has_reached(self._promote_at):
                self.stage += 1
                self._recent.clear()
        elif self.num_done < self._decay_at and self._has_reached(self._target):
            self._decay_at = self.num_done
            self._end = self.num_done + round(self._decay * self.num_done)

    def _has_reached(self, success: float | None) -> bool:
        is_full = len(self._recent) == SUCCESS_WINDOW
        return success is not None and is_full and bool(np.mean(self._recent) >= success)


def make_tiny(settings: Settings, progress: Progress | None = None) -> PolicyBase:
    """Returns a new model, pretrained on oracle episodes for `warm_start.num_steps`.

    Its tokens come from such episodes too, of the first stage: others would stay without meaning.
    """
    environment = warm_start_environments(settings)[0]
    corpus = oracle_texts(environment, _NUM_CORPUS_TASKS, settings.seed)
    base = build_tiny(settings.tiny, _limit(corpus), settings.seed)
    if settings.warm_start.num_steps:
        pretrain(base, settings, progress)
    base.model.config.update({FINGERPRINT_KEY: compute_fingerprint(base.model)})
    return base


def _limit(corpus: Iterator[str]) -> Iterator[str]:
    """Yields the beginnings of texts, until they are enough for a vocabulary."""
    num_chars = 0
    while num_chars < _MAX_CORPUS_CHARS and (text := next(corpus, None)) is not None:
        num_chars += len(text)
        yield text[:_MAX_TEXT_CHARS]


def pretrain(base: PolicyBase, settings: Settings, progress: Progress | None = None) -> None:
    """Trains all weights in place on the actions' tokens; `progress` is told of every step.

    Muon for the matrices (a third of AdamW's samples for the same accuracy) and AdamW for the rest.
    All in float32, and each micro-batch on one core: the same on all processors and any number of
    cores, but for the last digits. Under autocast a pass took 1.4 times as long on a processor with
    AVX-512's bfloat16 instructions. Raises: SettingsError where an episode is longer than the
    context.
    """
    model, warm_start = base.model, settings.warm_start
    schedule = PretrainSchedule(warm_start)
    chat = make_chat(base, settings)
    model.train()
    with _one_core_each() as pool, _open_batches(settings, chat) as make_batch:
        optimizers = _make_optimizers(model, warm_start.lr, pool)
        while not schedule.is_done:
            groups = make_batch(schedule.num_done, schedule.stage)
            for group in chain.from_iterable(optimizer.param_groups for optimizer in optimizers):
                group["lr"] = warm_start.lr * schedule.lr_factor
            rows = [_row(group, settings.tiny.max_context_tokens) for group in groups]
            loss, success = _backward(model, rows, pool)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            schedule.step(success)
            if progress is not None:
                progress(schedule.num_done, loss, success)
    model.zero_grad()
    model.train(False)


@contextmanager
def _open_batches(
    settings: Settings, chat: ChatFormat
) -> Iterator[Callable[[int, int], list[EpisodeGroup]]]:
    """Gives `WarmStartBatches.make`. Raises: as `open_batches`."""
    if settings.warm_start.num_steps < _MANY_STEPS:
        with closing(WarmStartBatches(settings, chat)) as batches:
            yield batches.make
        return
    from agentpeft.policies.models.batch_maker import open_batches

    with open_batches(settings, chat) as make:
        yield make


@contextmanager
def _one_core_each() -> Iterator[Executor]:
    """Gives as many threads as torch has, each of which computes on one core.

    A pass is thousands of small operations. Torch's threads share each of these and then wait for
    each other; asleep, since processes share the cores, two took longer than one. With a
    micro-batch each they wait once a step, which takes half the time.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as p:
            yield p
    finally:
        torch.set_num_threads(num_threads)


def _make_optimizers(model: PreTrainedModel, lr: float, pool: Executor) -> list[Optimizer]:
    embeddings = model.get_input_embeddings().weight
    named = list(model.named_parameters())
    matrices = [(n, p) for n, p in named if p.ndim == 2 and p is not embeddings]
    others = [(n, p) for n, p in named if p.ndim != 2 or p is embeddings]
    return [
        Float32Muon(matrices, lr=lr, weight_decay=0.01, pool=pool),
        torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
    ]


def _row(group: EpisodeGroup, max_tokens: int) -> tuple[Ids, Mask]:
    (episode,) = group.trajectories
    ids = np.concatenate([episode.prompt_ids, episode.token_ids])
    if len(ids) > max_tokens:
        raise SettingsError(
            f"the oracle's episode of task {group.task_id!r} has {len(ids)} tokens, and the tiny "
            f"model reads {max_tokens}: make the tasks shorter"
        )
    return ids, np.concatenate([np.zeros(len(episode.prompt_ids), np.bool_), episode.loss_mask])


def _backward(
    model: PreTrainedModel, rows: Sequence[tuple[Ids, Mask]], pool: Executor
) -> tuple[float, float]:
    """Sets the gradients of the mean loss over all actions' tokens.

    Returns that loss and the share of rows in which each of these tokens is the likeliest one, that
    is, which greedy decoding would play alike.
    """
    num_targets = sum(int(mask.sum()) for _, mask in rows)
    parameters = list(model.parameters())

    def compute(batch: tuple[Tensor, Tensor]) -> tuple[Sequence[Tensor], float, int]:
        ids, targets = batch
        where = targets != IGNORED
        logits = model.lm_head(_states_of(model.model, ids, where))
        loss = F.cross_entropy(logits, targets[where], reduction="sum") / num_targets
        gradients = torch.autograd.grad(loss, parameters)
        is_wrong = torch.zeros_like(where)
        is_wrong[where] = logits.argmax(-1) != targets[where]
        return gradients, loss.item(), int((~is_wrong.any(-1)).sum())

    model.zero_grad()
    total, num_right = 0.0, 0
    for gradients, loss, num_right_here in pool.map(compute, _micro_batches(rows)):  # in order
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        total += loss
        num_right += num_right_here
    return total, num_right / len(rows)


def _states_of(model: Any, ids: Tensor, where: Tensor) -> Tensor:
    """Returns the last hidden states, (U, H), at some positions of (B, T), row by row.

    At the others, two thirds of an oracle's episode, the last layer has only keys and values to
    compute. That takes a tenth off a step. `model` is a Llama without its output layer.
    """
    states = model.embed_tokens(ids)
    rotary = model.rotary_emb(states, torch.arange(ids.shape[1])[None])
    *layers, last = model.layers
    for layer in layers:
        states = layer(states, position_embeddings=rotary)
    attended = _attend_at(last.self_attn, last.input_layernorm(states), where, rotary)
    states = states[where] + attended
    states = states + last.mlp(last.post_attention_layernorm(states))
    results: Tensor = model.norm(states)
    return results


def _attend_at(
    attention: Any, states: Tensor, where: Tensor, rotary: tuple[Tensor, Tensor]
) -> Tensor:
    """Returns the results of causal attention over states (B, T, H) at some positions, (U, H)."""
    split = (-1, attention.head_dim)
    keys = attention.k_proj(states).unflatten(-1, split).transpose(1, 2)
    values = attention.v_proj(states).unflatten(-1, split).transpose(1, 2)
    rows, places = where.nonzero(as_tuple=True)
    ranks = where.cumsum(1)[where] - 1  # of a row's own
    queries = keys.new_zeros((len(where), int(where.sum(1).max()), *keys.shape[1::2]))
    queries[rows, ranks] = attention.q_proj(states[where]).unflatten(-1, split)
    seen_until = where.new_zeros(queries.shape[:2], dtype=torch.int64)
    seen_until[rows, ranks] = places
    results = F.scaled_dot_product_attention(
        _rotate(queries.transpose(1, 2), *(each[0, seen_until][:, None] for each in rotary)),
        _rotate(keys, *rotary),
        values,
        attn_mask=(torch.arange(where.shape[1]) <= seen_until[..., None])[:, None],
    )
    projected: Tensor = attention.o_proj(results.transpose(1, 2)[rows, ranks].flatten(1))
    return projected


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns states with rotary position embeddings."""
    first, second = states.chunk(2, -1)
    return states * cos + torch.cat([-second, first], -1) * sin


def _micro_batches(rows: Sequence[tuple[Ids, Mask]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields padded (ids, next ids or IGNORED) of (B, T), rows of like length together.

    Padding is on the right and attention is causal, so no attention mask is needed.
    """
    ordered = sorted(rows, key=lambda row: len(row[0]), reverse=True)
    num_tokens = len(rows) * len(ordered[0][0])
    size = -(-len(rows) // max(1, round(num_tokens / _MAX_TOKENS)))
    for start in range(0, len(rows), size):
        part = ordered[start : start + size]
        ids = np.zeros((len(part), len(part[0][0])), np.int64)
        targets = np.full(ids.shape, IGNORED)
        for index, (row_ids, mask) in enumerate(part):
            ids[index, : len(row_ids)] = row_ids
            targets[index, : len(row_ids) - 1] = np.where(mask[1:], row_ids[1:], IGNORED)
        yield torch.from_numpy(ids), torch.from_numpy(targets)


class Float32Muon(Optimizer):
    """torch's `Muon(weight_decay, adjust_lr_fn="match_rms_adamw")`, but for its type of numbers.

    torch's multiplies in bfloat16, which takes 26 times as long as float32 on processors that have
    no instructions for it, and rounds otherwise on others.
    Source: https://kellerjordan.github.io/posts/muon, with the step's size of arXiv:2502.16982.
    """

    def __init__(
        self, matrices: Iterable[Any], lr: float, weight_decay: float, pool: Executor
    ) -> None:
        """`pool`'s threads each orthogonalize a matrix."""
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self._pool = pool

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Changes all matrices in place."""
        del closure
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            ahead = [self._look_ahead(weight, weight.grad) for weight in weights]
            directions = self._pool.map(orthogonalize, ahead)
            for weight, direction in zip(weights, directions, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(direction, alpha=group["lr"] * 0.2 * math.sqrt(max(weight.shape)))

    def _look_ahead(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """Returns a matrix's momentum with this step's gradient, once more on top (Nesterov)."""
        if not self.state[weight]:
            self.state[weight]["momentum"] = torch.zeros_like(weight)
        momentum: Tensor = self.state[weight]["momentum"]
        momentum.lerp_(gradient, 1 - _MOMENTUM)
        return gradient.lerp(momentum, _MOMENTUM)


@torch.no_grad()
def orthogonalize(matrix: Tensor) -> Tensor:
    """Returns a matrix with the same singular vectors and singular values of 0.7 to 1.2, float32.

    By five steps of a polynomial; singular values below a thousandth of the norm stay smaller.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalize(matrix.T).T
    a, b, c = _COEFFICIENTS
    matrix = matrix / matrix.norm().clamp(min=1e-7)
    for _ in range(_NUM_ORTHOGONALIZING_STEPS):
        gram = matrix @ matrix.T
        matrix = torch.addmm(matrix, torch.addmm(gram, gram, gram, beta=b, alpha=c), matrix, beta=a)
    return matrix
