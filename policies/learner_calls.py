"""What the driver has done in a learner's process: functions of a `Learner`."""

import io
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from agentpeft.policies.chat import ChatFormat
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.learner import Learner
from agentpeft.policies.oracle import oracle_groups, warm_start_batches
from agentpeft.policies.samples import TokenRecord
from agentpeft.policies.token_records import to_token_record

ADAPTER, STATE = "adapter", "learner.pt"


def imitate(learner: Learner, first: int, num_groups: int) -> dict[str, float]:
    """Learns from the oracle's episodes of the tasks from position `first` on."""
    settings = learner.settings
    chat = ChatFormat(learner.policy.base.tokenizer, settings.model.use_chat_template)
    groups = oracle_groups(settings.environment, chat, settings.seed, first)
    return learner.update(learner.peers.of_first(lambda: list(islice(groups, num_groups))))


def warm_start(learner: Learner) -> None:
    """Takes all steps of the warm start with the adapter."""
    settings = learner.settings
    chat = ChatFormat(learner.policy.base.tokenizer, settings.model.use_chat_template)
    batches = warm_start_batches(settings, chat)
    for _ in range(settings.warm_start.num_steps):
        learner.sft_update(learner.peers.of_first(lambda: next(batches)))


def read_token_records(learner: Learner) -> list[TokenRecord]:
    """Returns the records of the few episodes that pulled hardest at the last update."""
    tokenizer = learner.policy.base.tokenizer
    return [to_token_record(group, s, tokenizer) for group, s in learner.score_extremes()]


def learner_to_files(learner: Learner) -> dict[str, bytes]:
    """Returns a checkpoint's files: the adapter in PEFT's own format, and the learner's state."""
    buffer = io.BytesIO()
    torch.save(learner.state_dict(), buffer)
    return {**adapter_to_files(learner, f"{ADAPTER}/"), STATE: buffer.getvalue()}


def adapter_to_files(learner: Learner, prefix: str = "") -> dict[str, bytes]:
    """Returns the files of an adapter's folder (of a model's, where all weights are trained)."""
    with TemporaryDirectory() as folder:
        learner.policy.save(folder)
        return {f"{prefix}{path.name}": path.read_bytes() for path in Path(folder).iterdir()}


def restore_learner(learner: Learner, files: Mapping[str, bytes]) -> None:
    """Goes on from `learner_to_files`. Raises: CheckpointError, SettingsError."""
    try:
        state = torch.load(io.BytesIO(files[STATE]), weights_only=True)
    except (KeyError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"the learner's state cannot be read: {error}") from None
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            if name.startswith(f"{ADAPTER}/"):
                (Path(folder) / Path(name).name).write_bytes(content)
        learner.policy.load(folder)
    learner.load_state_dict(state)
