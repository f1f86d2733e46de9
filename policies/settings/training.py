"""The settings of what is learnt, and what each algorithm reads of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from pydantic.types import NonNegativeFloat

from agentpeft.policies.settings.section import Count, CountOrZero, MayChange, Section

if TYPE_CHECKING:
    from agentpeft.policies.settings.config import Settings

AlgorithmName = Literal[
    "reinforce", "rloo", "grpo", "dr_grpo", "gspo", "cispo", "raft", "ppo", "a2c", "distill", "sft"
]
CriticKind = Literal["shared", "separate"]
Normalization = Literal["token", "sequence", "constant"]


class TrainingSettings(Section):
    """What is learnt, and how: [what the algorithms compute](algorithms.md).

    A setting that the algorithm does not read is refused when it is set. None means the
    algorithm's own default.
    """

    algorithm: AlgorithmName = "grpo"
    """`reinforce`, `rloo`, `grpo`, `dr_grpo`, `gspo`, `cispo`, `raft`, `ppo`, `a2c`,
    `distill` or `sft`.
    """
    num_iterations: MayChange[CountOrZero] = 100
    """Iterations of the whole run."""
    num_groups: Count = 32
    """Tasks in an iteration."""
    group_size: Count = 8
    """Episodes of each task."""
    lr: MayChange[float] = Field(default=1e-4, gt=0)
    """AdamW's learning rate."""
    lr_schedule: MayChange[Literal["constant", "linear", "cosine"]] = "constant"
    """Course of the learning rate; `linear` and `cosine` end near 0 at the last iteration."""
    num_warmup_iterations: MayChange[CountOrZero] = 0
    """Iterations over which the learning rate rises linearly at the start."""
    max_grad_norm: MayChange[float] = Field(default=1.0, gt=0)
    """The norm of the gradient is clipped to this."""
    num_epochs: Count | None = None
    """Passes over an iteration's episodes. None: 2 with `ppo`, else 1. `reinforce`, `rloo`
    and `a2c` allow 1 only, since their loss has no ratio.
    """
    num_minibatches: Count = 1
    """Optimizer steps in a pass. A group is never cut, so of fewer groups there are fewer steps."""
    clip_range: MayChange[float | None] = Field(default=None, gt=0)
    """ε of the clipped ratio (`grpo`, `dr_grpo`, `gspo`, `cispo`, `ppo`, `distill`). None:
    0.0003 with `gspo`, 1 with `cispo` (no lower bound), else 0.2.
    """
    clip_range_high: MayChange[float | None] = Field(default=None, gt=0)
    """Upper ε of the clipped ratio (clip-higher). None: `clip_range`; without either 0.0004 with
    `gspo`, 4 with `cispo`.
    """
    loss_normalization: Normalization | None = None
    """What the loss is averaged over: `token`, `sequence`, `constant`. None: `constant` with
    `dr_grpo`, `sequence` with `gspo` and `raft`, else `token`.
    """
    kl_coeff: MayChange[NonNegativeFloat] = 0.0
    """Weight of the KL to the reference, which is the base without the adapter, or the
    adapter that training started from.
    """
    entropy_coeff: MayChange[float | None] = Field(default=None, ge=0)
    """Weight of the entropy bonus. None: 0.01 with `ppo`, else 0."""
    importance_cap: MayChange[float | None] = Field(default=None, gt=0)
    """Truncated importance sampling: the cap on the ratio of the learner's probability to the
    engine's. None: 2.0 with `max_adapter_lag` or `num_replay_tasks` above 0, else off.
    """
    critic: CriticKind | None = None
    """Predicts the returns of turns, with `ppo` and `a2c`: `shared` (on the policy's adapter)
    or `separate` (an adapter of its own). None: `shared` with `a2c`, no critic with `ppo`.
    """
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount (gamma) of the next turn's value. Needs a critic."""
    lambda_: float = Field(default=1.0, ge=0, le=1)
    """Lambda of GAE: 1 uses the rewards that came, 0 the next turn's value in their place. Needs
    a critic.
    """
    teacher: MayChange[str | None] = Field(default=None, min_length=1)
    """A model (as `model.name`), an adapter's folder, or the URL of an endpoint (vLLM, SGLang; of
    several models there one is named by `URL#NAME`), with the policy's vocabulary: each sampled
    token's advantage gets its log-probability there less the policy's
    ([distillation](algorithms.md#a-teacher)). None: no teacher.
    """
    num_replay_tasks: MayChange[CountOrZero] = 0
    """Number of tasks, the latest, whose last success is remembered; it joins a group of the
    same task in which all episodes failed. 0: no replay.
    """
    chats: str | None = Field(default=None, min_length=1)
    """JSONL or parquet file of [chats](algorithms.md#imitation-of-chats), or
    `hub:owner/name[:split]`, that algorithm `sft` learns from. None: the oracle's episodes.
    """
    shuffle_rewards: bool = False
    """A control: deals each update's rewards out among its episodes at random, so that they
    teach nothing.
    """
    dynamic_sampling: MayChange[bool] = False
    """Drops groups of equal returns before the update."""
    max_resampled_groups: MayChange[CountOrZero] = 0
    """With `dynamic_sampling`: further groups that an iteration may sample in place of dropped
    ones, until `num_groups` have unequal returns. 0: none.
    """

    @property
    def is_taught_by_endpoint(self) -> bool:
        """Whether the teacher is a server's."""
        return (self.teacher or "").startswith(("http://", "https://"))

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in the run."""
        yield from self._unread()
        yield from self._additions(run)
        if self.group_size == 1 and (self.dynamic_sampling or self.algorithm in _NEEDS_GROUPS):
            yield (
                f"training.group_size must be >= 2, got 1: algorithm {self.algorithm!r} or "
                "training.dynamic_sampling compares the episodes of a group"
            )
        if self.max_resampled_groups > 0 and not self.dynamic_sampling:
            yield (
                f"training.max_resampled_groups {self.max_resampled_groups} has no effect without "
                "training.dynamic_sampling = true"
            )
        if self.chats is not None and run.is_rl:
            yield (
                f"training.chats {self.chats!r} are for algorithm 'sft', not {self.algorithm!r}: "
                "leave them out, or begin with them (warm_start.chats)"
            )
        is_signed_raft = self.algorithm == "raft" and self.teacher is not None
        if (self.num_epochs or 1) > 1 and (self.algorithm in _WITHOUT_RATIO or is_signed_raft):
            yield (
                f"training.num_epochs {self.num_epochs}: the loss of algorithm {self.algorithm!r} "
                "has no ratio to the policy that sampled, which later epochs need: set it to 1, "
                "or take grpo, dr_grpo, gspo, cispo or ppo"
            )
        low = self.clip_range or _DEFAULT_CLIP_RANGE.get(self.algorithm, 0.2)
        if self.algorithm != "cispo" and (self.clip_range_high or 1e9) < low:
            yield (
                f"training.clip_range_high {self.clip_range_high} must be >= training.clip_range "
                f"({low:g} unless set)"
            )
        if 0 < self.num_iterations <= self.num_warmup_iterations:
            yield (
                f"training.num_warmup_iterations {self.num_warmup_iterations} must be below "
                f"training.num_iterations {self.num_iterations}"
            )

    def _unread(self) -> Iterator[str]:
        """Yields the settings that were changed though this algorithm does not read them."""
        changed = self.changed()
        for name in sorted(changed & {*_IGNORED.get(self.algorithm, ())}):
            readers = [known for known, names in _IGNORED.items() if name not in names]
            yield (
                f"training.{name} has no effect with algorithm {self.algorithm!r} (it is for "
                f"{', '.join(readers)}): leave it at {dict(TrainingSettings())[name]!r}"
            )
        if self.algorithm == "ppo" and self.critic is None and changed & {*_CRITIC}:
            yield (
                "training.gamma and lambda_ have no effect without a critic: set training.critic "
                "to 'shared' or 'separate'"
            )

    def _additions(self, run: "Settings") -> Iterator[str]:
        """Yields what is wrong with the replay and the teacher."""
        telling = {"num_replay_tasks": 0, "teacher": None}
        for name, default in telling.items():
            if self.shuffle_rewards and dict(self)[name] != default:
                yield (
                    f"training.{name} would still tell the learner how an episode went, which "
                    "training.shuffle_rewards hides: leave it out of the control"
                )
        if self.teacher is not None and self.dynamic_sampling:
            yield (
                "training.dynamic_sampling would drop the groups of equal returns, of which "
                "training.teacher has something to say: set it to false"
            )
        if self.algorithm == "distill" and self.teacher is None:
            yield "training.algorithm 'distill' learns from a teacher alone: set training.teacher"
        if self.is_taught_by_endpoint and (run.deterministic or run.env_runners.temperature != 1):
            yield (
                f"training.teacher {self.teacher!r}: an endpoint says log-probabilities at "
                "temperature 1, whose rounding depends on what else it computes: set "
                "env_runners.temperature to 1 and deterministic to false"
            )


_CLIP = ("clip_range", "clip_range_high")
_DEFAULT_CLIP_RANGE = {"gspo": 3e-4}
_CRITIC = ("critic", "gamma", "lambda_")
_IGNORED: dict[str, tuple[str, ...]] = {
    "reinforce": (*_CLIP, *_CRITIC),
    "rloo": (*_CLIP, *_CRITIC),
    "raft": (*_CLIP, *_CRITIC),
    "grpo": _CRITIC,
    "dr_grpo": _CRITIC,
    "gspo": _CRITIC,
    "cispo": _CRITIC,
    "ppo": (),
    "distill": (
        *_CRITIC,
        "dynamic_sampling",
        "max_resampled_groups",
        "num_replay_tasks",
        "shuffle_rewards",
    ),
    "a2c": _CLIP,
    "sft": (
        *_CLIP,
        *_CRITIC,
        "kl_coeff",
        "dynamic_sampling",
        "entropy_coeff",
        "group_size",
        "importance_cap",
        "num_replay_tasks",
        "teacher",
        "max_resampled_groups",
        "shuffle_rewards",
    ),
}
"""Which settings of `training` an algorithm does not read."""
_WITHOUT_RATIO = ("reinforce", "rloo", "a2c")
_NEEDS_GROUPS = ("rloo", "grpo", "dr_grpo", "gspo", "cispo", "raft")
