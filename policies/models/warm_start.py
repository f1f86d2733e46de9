"""The supervised steps that make the tiny model, all its weights, cached by what they depend on.

Task files that an environment reads are known by their paths alone: after a change of their
content, delete the cache.
"""

import hashlib
import json
import logging
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from safetensors import SafetensorError
from torch import Tensor
from torch.optim import Optimizer
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

import agentpeft.envs
from agentpeft.envs import SettingsError
from agentpeft.envs.registration import find_spec
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.messages import EpisodeGroup, Ids, Mask
from agentpeft.policies.models.policy_base import (
    FINGERPRINT_KEY,
    PolicyBase,
    Progress,
    compute_fingerprint,
)
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.rollout.chat import make_chat
from agentpeft.policies.rollout.oracle import (
    oracle_texts,
    warm_start_batches,
    warm_start_environment,
)
from agentpeft.policies.settings.config import CHAT_SETTINGS, Settings, WarmStartSettings

logger = logging.getLogger(__name__)
_NUM_CORPUS_TASKS = 1000
_WARMUP = 0.05
_LAST_DECAY = 0.1
_WINDOW = 8
_MAX_TOKENS = 2048  # larger ones no longer fit the processor's caches: up to twice slower
_LENGTH_STEP = 16
IGNORED = -100  # cross entropy's own word for positions without a target
_SOURCES = (
    "models/tiny",
    "models/warm_start",
    "rollout/oracle",
    "rollout/chat",
    "rollout/thoughts",
)
_CACHE_VARIABLE = "AGENTPEFT_CACHE"
Batch = list[EpisodeGroup]


def load_tiny(settings: Settings, progress: Progress | None = None) -> PolicyBase:
    """Returns the tiny model in float32 on the CPU, from the cache where it is there and whole.

    Raises: SettingsError if it cannot be made, or the cache cannot be written.
    """
    folder = cache_dir() / f"tiny-{compute_key(settings)}"
    base = _read(folder)
    if base is None:
        made = make_tiny(settings, progress)
        try:
            _write(made, folder)
        except (OSError, SafetensorError) as error:
            raise SettingsError(
                f"the cache {folder.parent} cannot be written ({error}); set {_CACHE_VARIABLE}"
            ) from None
        base = _read(folder)
    if base is None:
        raise SettingsError(f"the cache entry {folder} is damaged as soon as it is written")
    return base


def cache_dir() -> Path:
    """Returns `$AGENTPEFT_CACHE`, or the user's cache folder."""
    return Path(os.environ.get(_CACHE_VARIABLE) or "~/.cache/agentpeft").expanduser().resolve()


def compute_key(settings: Settings) -> str:
    """Returns 16 hexadecimal digits over the settings and the source that the model depends on."""
    fields = {"tiny", "environment", "warm_start", "seed"}
    wanted = settings.model_dump(include=fields)
    wanted["model"] = settings.model.model_dump(include=CHAT_SETTINGS)
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True, default=repr).encode())
    (suite,) = map(Path, agentpeft.envs.__path__)
    policies = Path(__file__).parents[1]
    own = [policies / f"{name}.py" for name in _SOURCES]
    shared = [*suite.glob("core/*.py"), *suite.glob("tasks/*.py")]
    folder = _environment_folder(settings.environment.id, suite)
    theirs = (path for path in folder.rglob("*") if path.suffix in {".py", ".txt", ".toml"})
    for path in chain(own, sorted(shared), sorted(theirs)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _environment_folder(env_id: str, suite: Path) -> Path:
    """Returns the folder of a suite's environment; the suite's own for one from elsewhere."""
    entry_point = find_spec(env_id).entry_point
    module = entry_point if isinstance(entry_point, str) else ""
    parts = module.partition(":")[0].split(".")
    return suite / parts[2] if parts[:2] == ["agentpeft", "envs"] and len(parts) > 3 else suite


def make_tiny(settings: Settings, progress: Progress | None = None) -> PolicyBase:
    """Returns a new model, trained on oracle episodes for `warm_start.num_steps`.

    Its tokens come from the episodes that it learns from too: others would stay without meaning.
    """
    corpus = oracle_texts(warm_start_environment(settings), _NUM_CORPUS_TASKS, settings.seed)
    base = build_tiny(settings.tiny, corpus, settings.seed)
    if settings.warm_start.num_steps:
        train(base, settings, progress)
    base.model.config.update({FINGERPRINT_KEY: compute_fingerprint(base.model)})
    return base


def train(base: PolicyBase, settings: Settings, progress: Progress | None = None) -> None:
    """Trains all weights in place on the actions' tokens; `progress` is told of every step.

    Muon for the matrices (a third of AdamW's samples for the same accuracy) and AdamW for the rest.
    Raises: SettingsError where an episode is longer than the context.
    """
    model, warm_start = base.model, settings.warm_start
    optimizers = _make_optimizers(model, warm_start.lr)
    schedule = WarmStartSchedule(warm_start)
    chat = make_chat(base, settings)
    model.train()
    model.set_attn_implementation("eager")  # a third faster: sdpa's gradient is slow
    for groups in _one_ahead(warm_start_batches(settings, chat)):
        for group in chain.from_iterable(optimizer.param_groups for optimizer in optimizers):
            group["lr"] = warm_start.lr * schedule.lr_factor
        rows = [_row(group, settings.tiny.max_context_tokens) for group in groups]
        loss, success = _backward(model, rows)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step(success)
        if progress is not None:
            progress(schedule.num_done, loss, success)
        if schedule.is_done:
            break
    model.set_attn_implementation("sdpa")
    model.train(False)


def _one_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yields the batches, the next one being made meanwhile: a sixth of the time otherwise."""
    with ThreadPoolExecutor(1) as thread:
        ahead = thread.submit(next, batches, None)
        while (batch := ahead.result()) is not None:
            ahead = thread.submit(next, batches, None)
            yield batch


class WarmStartSchedule:
    """The learning rate's factor, and when to stop: warm-up, constant, linear decay.

    The warm-up is a twentieth of `num_steps`. The decay takes the last `decay` of them; once the
    mean success over 8 batches has reached `target_success`, it begins at once, and is a tenth of
    the steps taken so far. Source: Hu et al., "MiniCPM", 2024, section 4 (warm-up, stable, decay).

    >>> schedule = WarmStartSchedule(WarmStartSettings(num_steps=100))
    >>> for _ in range(95): schedule.step(0.0)
    >>> schedule.lr_factor
    0.5
    """

    def __init__(self, warm_start: WarmStartSettings) -> None:
        num_steps = warm_start.num_steps
        self.num_done = 0
        self._num_warmup = max(1, round(_WARMUP * num_steps))
        self._decay_at, self._end = num_steps - round(warm_start.decay * num_steps), num_steps
        self._target = warm_start.target_success
        self._recent: deque[float] = deque(maxlen=_WINDOW)

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
        is_reached = self._target is not None and np.mean(self._recent) >= self._target
        if is_reached and len(self._recent) == _WINDOW and self.num_done < self._decay_at:
            self._decay_at = self.num_done
            self._end = self.num_done + max(1, round(_LAST_DECAY * self.num_done))


def _make_optimizers(model: PreTrainedModel, lr: float) -> list[Optimizer]:
    embeddings = model.get_input_embeddings().weight
    named = list(model.named_parameters())
    matrices = [(n, p) for n, p in named if p.ndim == 2 and p is not embeddings]
    others = [(n, p) for n, p in named if p.ndim != 2 or p is embeddings]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
    ]


def _row(group: EpisodeGroup, max_tokens: int) -> tuple[Ids, Mask]:
    (episode,) = group.trajectories
    ids = np.concatenate([episode.prompt_ids, episode.token_ids])
    if len(ids) > max_tokens:
        raise SettingsError(
            f"the oracle's episode of task {group.task_id!r} has {len(ids)} tokens: raise "
            f"tiny.max_context_tokens (now {max_tokens})"
        )
    return ids, np.concatenate([np.zeros(len(episode.prompt_ids), np.bool_), episode.loss_mask])


def _backward(model: PreTrainedModel, rows: Sequence[tuple[Ids, Mask]]) -> tuple[float, float]:
    """Adds the gradients of the mean loss over all actions' tokens.

    Returns that loss and the share of rows in which each of these tokens is the likeliest one, that
    is, which greedy decoding would play alike.
    """
    num_targets = sum(int(mask.sum()) for _, mask in rows)
    total, num_right = 0.0, 0
    for ids, targets in _micro_batches(rows):
        with torch.autocast("cpu", torch.bfloat16, enabled=_has_fast_bfloat16()):
            logits = model(input_ids=ids, use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
        loss = loss / num_targets
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        is_right = (logits.argmax(-1) == targets) | (targets == IGNORED)
        num_right += int(is_right.all(-1).sum())
    return total, num_right / len(rows)


def _micro_batches(rows: Sequence[tuple[Ids, Mask]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields padded (ids, next ids or IGNORED) of (B, T), rows of like length together.

    Padding is on the right and attention is causal, so no attention mask is needed. Few different
    shapes occur, because bfloat16 kernels are compiled anew for each.
    """
    ordered = sorted(rows, key=lambda row: len(row[0]), reverse=True)
    num_tokens = len(rows) * _round_up(len(ordered[0][0]))
    size = -(-len(rows) // max(1, round(num_tokens / _MAX_TOKENS)))
    for start in range(0, len(rows), size):
        part = ordered[start : start + size]
        ids = np.zeros((len(part), _round_up(len(part[0][0]))), np.int64)
        targets = np.full(ids.shape, IGNORED)
        for index, (row_ids, mask) in enumerate(part):
            ids[index, : len(row_ids)] = row_ids
            targets[index, : len(row_ids) - 1] = np.where(mask[1:], row_ids[1:], IGNORED)
        yield torch.from_numpy(ids), torch.from_numpy(targets)


def _round_up(length: int) -> int:
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP


def _has_fast_bfloat16() -> bool:
    """Returns whether the processor multiplies bfloat16 matrices in hardware."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def _read(folder: Path) -> PolicyBase | None:
    """Returns a whole entry; None where there is none or it is damaged, which is then deleted."""
    if not folder.exists():
        return None
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        logger.warning("the cached model %s is damaged and is made again: %s", folder, error)
    else:
        base = PolicyBase(model.train(False), tokenizer, str(folder))
        if base.fingerprint == compute_fingerprint(model):
            return base
        logger.warning("the cached model %s is damaged and is made again", folder)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _write(base: PolicyBase, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with making(folder) as new:
            base.model.save_pretrained(new)
            base.tokenizer.save_pretrained(new)
    except OSError:
        if not folder.exists():  # else another process was first: its entry is as good
            raise
