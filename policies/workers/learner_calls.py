"""What the driver has done in a learner's process: functions of a `Learner`."""

import io
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory, gettempdir

import numpy as np
import torch

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.probe import NUM_CONTINUED, TEXTS, Probe
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.scoring import score_sequences
from agentpeft.policies.learning.token_records import to_token_record
from agentpeft.policies.messages import AdapterAck, AdapterVersion, Floats, TokenRecord
from agentpeft.policies.models.load import choose_dtype, uses_autocast
from agentpeft.policies.models.lora import LoraPolicy
from agentpeft.policies.rollout.chat import make_chat
from agentpeft.policies.rollout.oracle import oracle_groups, warm_start_batches

ADAPTER, STATE = "adapter", "learner.pt"
_ZIP = b"PK\3\4"
_MAX_PROBE_TOKENS = 32
_EXACT_LIMIT, _BFLOAT16_LIMIT = 1e-3, 0.05


def imitate(
    learner: Learner, first: int, num_groups: int
) -> tuple[dict[str, float], tuple[int, ...]]:
    """Learns from the oracle's episodes of the tasks from position `first` on.

    Returns the update's metrics, and the hashes of the tasks.
    """
    settings = learner.settings
    chat = make_chat(learner.policy.base, settings)
    played = oracle_groups(settings.environment, chat, settings.seed, first)
    groups = learner.peers.of_first(lambda: list(islice(played, num_groups)))
    hashes = tuple(group.task_hash for group in groups if group.task_hash is not None)
    return learner.update(groups), hashes


def warm_start(learner: Learner) -> None:
    """Takes all steps of the warm start with the adapter."""
    settings = learner.settings
    chat = make_chat(learner.policy.base, settings)
    batches = warm_start_batches(settings, chat)
    for _ in range(settings.warm_start.num_steps):
        learner.sft_update(learner.peers.of_first(lambda: next(batches)))


def read_token_records(learner: Learner) -> list[TokenRecord]:
    """Returns the records of the few episodes that pulled hardest at the last update."""
    tokenizer = learner.policy.base.tokenizer
    return [to_token_record(group, s, tokenizer) for group, s in learner.score_extremes()]


def ship(learner: Learner) -> tuple[AdapterVersion, AdapterAck, Probe | None]:
    """Returns the present adapter, and what a runner must answer to it: receipt and probe."""
    adapter, interval = learner.adapter(), learner.settings.fault_tolerance.probe_interval
    is_scripted = learner.settings.env_runners.engine == "scripted"
    is_due = interval > 0 and adapter.version % interval == 0 and not is_scripted
    receipt = AdapterAck(adapter.version, adapter.sha256)
    return adapter, receipt, _make_probe(learner) if is_due else None


def _make_probe(learner: Learner) -> Probe:
    policy, settings = learner.policy, learner.settings
    model, config = policy.model.train(False), policy.base.model.config.get_text_config()
    contexts = settings.env_runners.max_context_tokens, config.max_position_embeddings
    room = min(limit for limit in contexts if limit is not None) - NUM_CONTINUED
    encoded = (policy.base.tokenizer(text)["input_ids"] for text in TEXTS)
    sequences = tuple(np.array(ids[: max(min(room, _MAX_PROBE_TOKENS), 2)]) for ids in encoded)
    gpus = settings.env_runners.num_gpus_per_env_runner, settings.learners.num_gpus_per_learner
    devices = [torch.device("cuda" if num_gpus > 0 else "cpu") for num_gpus in gpus]
    dtypes = {choose_dtype(settings.model, device) for device in devices}
    casts = uses_autocast(settings, model, model.device)
    default = _BFLOAT16_LIMIT if casts or torch.bfloat16 in dtypes else _EXACT_LIMIT

    def score() -> Floats:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=casts):
            return np.concatenate(score_sequences(model, config.vocab_size, sequences))

    logprobs, base_logprobs = score(), None
    if isinstance(policy, LoraPolicy):
        with policy.model.disable_adapter():
            base_logprobs = score()
    limits = settings.fault_tolerance
    limit = limits.max_probe_difference or default
    return Probe(sequences, logprobs, base_logprobs, limit, limits.min_served_effect)


def learner_to_files(learner: Learner) -> dict[str, bytes]:
    """Returns a checkpoint's files: the adapter in PEFT's own format, and the learner's state."""
    buffer = io.BytesIO()
    torch.save(learner.state_dict(), buffer)
    return {**adapter_to_files(learner, f"{ADAPTER}/"), STATE: buffer.getvalue()}


def adapter_to_files(learner: Learner, prefix: str = "") -> dict[str, bytes]:
    """Returns the files of an adapter's folder (of a model's, where all weights are trained)."""
    with TemporaryDirectory() as folder:
        try:
            learner.policy.save(folder)
        except CheckpointError as error:  # what has no room is the folder of temporary files
            raise CheckpointError(str(error).replace(folder, gettempdir())) from error
        return {f"{prefix}{path.name}": path.read_bytes() for path in Path(folder).iterdir()}


def restore_learner(learner: Learner, files: Mapping[str, bytes]) -> None:
    """Goes on from `learner_to_files`. Raises: CheckpointError, SettingsError."""
    try:
        if not files[STATE].startswith(_ZIP):  # which torch would take for a pickle
            raise UnpicklingError("it is no file of torch")
        state = torch.load(io.BytesIO(files[STATE]), weights_only=True)
    except (KeyError, RuntimeError, EOFError, UnpicklingError) as error:
        raise CheckpointError(f"the learner's state cannot be read: {error}") from None
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            if name.startswith(f"{ADAPTER}/"):
                (Path(folder) / Path(name).name).write_bytes(content)
        try:
            learner.policy.load(folder)
        except (CheckpointError, SettingsError) as error:  # by then this folder is gone
            text = str(error).replace(f"{folder}/", "").replace(folder, "of the checkpoint")
            raise type(error)(text) from error
    learner.load_state_dict(state)
