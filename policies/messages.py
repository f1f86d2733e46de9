"""What flows between engine, env runner, learner and driver."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from agentpeft.envs import Outcome

Ids: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float32]
Bits: TypeAlias = npt.NDArray[np.uint16]
"""Numbers in bfloat16, which numpy does not have, by their bits."""
Mask: TypeAlias = npt.NDArray[np.bool_]
Ref: TypeAlias = Any
"""A Ray reference to a message; in one process the message itself."""


class StopReason(StrEnum):
    """Why a completion ended."""

    STOP_TOKEN = "stop_token"  # noqa: S105
    MAX_NEW_TOKENS = "max_new_tokens"
    CONTEXT_FULL = "context_full"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class GenerationRequest:
    """One turn of one episode, in tokens.

    `session` names the episode: its earlier turns' keys and values may be kept for it. `prefix`
    names a prompt that others share (a group's first turn); None where there is none. `prompt_ids`
    is the whole context, of shape (T,). The sampled ids follow from context, adapter, temperature
    and `seed`, but for rounding: how numbers are summed depends on what else is in the batch, which
    settings that are `deterministic` fix. `temperature` 0 is greedy. `adapter_version` None is the
    one loaded last.
    """

    session: str
    prompt_ids: Ids
    seed: tuple[int, ...]
    temperature: float = 1.0
    max_new_tokens: int = 256
    prefix: str | None = None
    adapter_version: int | None = None


@dataclass(frozen=True)
class Completion:
    """Sampled ids (n,), the stop token included, and their log-probabilities (n,).

    The log-probabilities are those of the sampling distribution (after the temperature; greedy:
    of temperature 1). `adapter_version` is what the engine served; of a turn that was interrupted
    for a new adapter the last one, and `token_versions` (n,) has each token's.
    """

    token_ids: Ids
    logprobs: Floats
    stop_reason: StopReason
    adapter_version: int
    token_versions: Ids | None = None


@dataclass(frozen=True)
class Trajectory:
    """One episode, in tokens: a prompt, then what was sampled and what the environment said.

    `prompt_ids`: (P,). `token_ids`, `loss_mask`, `sampling_logprobs`: (T,); the mask is True on
    sampled tokens only, stop tokens included; log-probabilities are 0 elsewhere. `turn_ends`: for
    each turn, the index after its last sampled token. `turn_rewards`: one per turn, the final
    reward in the last. An episode whose prompt fills the context has no tokens and no turns.
    `token_versions`: (T,), the adapter version that sampled each token; None: the group's.
    `is_branch`: it is one more conversation of the episode of the trajectory before it, with the
    same return.
    """

    prompt_ids: Ids
    token_ids: Ids
    loss_mask: Mask
    sampling_logprobs: Floats
    turn_ends: tuple[int, ...]
    turn_rewards: tuple[float, ...]
    outcome: Outcome
    token_versions: Ids | None = None
    is_branch: bool = False

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of rewards."""
        return float(sum(self.turn_rewards))


@dataclass(frozen=True)
class EpisodeGroup:
    """The episodes of one task.

    `group_id` is the task's position in the task stream. `adapter_version` sampled its first turn;
    with a lag later turns may be of newer ones, and with `in_flight_updates` it is the newest of
    all. `task_hash` is of the task's content; None where it is not known.
    """

    group_id: int
    task_id: str
    skills: tuple[str, ...]
    adapter_version: int
    trajectories: tuple[Trajectory, ...]
    task_hash: int | None = None

    @property
    def episodes(self) -> list[Trajectory]:
        """The first trajectory of each episode."""
        return [trajectory for trajectory in self.trajectories if not trajectory.is_branch]


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode in words, for the sessions' files and for evaluation."""

    group_id: int
    sample: int
    task_id: str
    skills: tuple[str, ...]
    adapter_version: int
    outcome: Outcome
    episode_return: float
    num_turns: int
    num_tokens: int
    messages: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TokenRecord:
    """An episode as the learner saw it, for reports; its other facts are in its EpisodeRecord.

    `prompt` is as it was tokenised. `tokens` and `loss_mask` (1: sampled): (T,). `advantages`,
    `sampling_logprobs` and `ratios`: one for each sampled token; a ratio is the token's probability
    after the update over that with which it was sampled.
    """

    group_id: int
    sample: int
    adapter_version: int
    prompt: str
    tokens: tuple[str, ...]
    loss_mask: tuple[int, ...]
    advantages: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class AdapterVersion:
    """An adapter's weights; `name` has the experiment and the version, `quickstart-000012`.

    `weights` are float32 or bfloat16, by PEFT's names. `sha256` is over names, shapes and bytes.
    `scaling` is what B A is multiplied by.
    """

    version: int
    name: str
    sha256: str
    scaling: float
    weights: dict[str, Floats | Bits]


@dataclass(frozen=True)
class AdapterAck:
    """What a runner serves, computed from what it received; or what it is expected to answer."""

    version: int
    sha256: str
