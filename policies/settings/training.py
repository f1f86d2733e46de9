"""The settings of what is learnt, and what each algorithm reads of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

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
_Epsilon = Annotated[float, Field(gt=0)]
_Epsilons = Annotated[tuple[_Epsilon, _Epsilon], Field(strict=False)]
CLIP = (0.2, 0.2)
"""ε of the clipped ratio below and above, of algorithms that have no other."""


@dataclass(frozen=True)
class AlgorithmTerms:
    """What an algorithm reads of `training`, and its defaults there.

    How it computes is a row of `learning.algorithms.ALGORITHMS`.

    `clip`: ε of the ratio below and above; None: its loss clips nothing. `has_ratio`: whether its
    loss stays right once the policy is not the one that sampled, as in further epochs.
    `compares_groups`: whether an advantage is of an episode among those of its task.
    """

    normalization: Normalization = "token"
    clip: tuple[float, float] | None = None
    num_epochs: int = 1
    entropy_coeff: float = 0.0
    critic: CriticKind | None = None
    may_have_critic: bool = False
    has_ratio: bool = True
    compares_groups: bool = False
    reads_rewards: bool = True
    is_supervised: bool = False

    @property
    def unread(self) -> set[str]:
        """The names of the settings that have no effect."""
        names = set[str]()
        if self.clip is None:
            names.add("clip_range")
        if not self.may_have_critic:
            names |= {"critic", "gamma", "lambda_"}
        if not self.reads_rewards:
            names |= {"dynamic_sampling", "shuffle_rewards"}
        if self.is_supervised:
            names |= {"entropy_coeff", "group_size", "importance_cap", "kl_coeff", "teacher"}
        return names


ALGORITHM_TERMS: dict[AlgorithmName, AlgorithmTerms] = {
    "reinforce": AlgorithmTerms(has_ratio=False),
    "rloo": AlgorithmTerms(has_ratio=False, compares_groups=True),
    "grpo": AlgorithmTerms(clip=CLIP, compares_groups=True),
    "dr_grpo": AlgorithmTerms("constant", clip=CLIP, compares_groups=True),
    "gspo": AlgorithmTerms("sequence", clip=(3e-4, 4e-4), compares_groups=True),
    "cispo": AlgorithmTerms(clip=(1.0, 4.0), compares_groups=True),
    "raft": AlgorithmTerms("sequence", compares_groups=True),
    "ppo": AlgorithmTerms(clip=CLIP, num_epochs=2, entropy_coeff=0.01, may_have_critic=True),
    "a2c": AlgorithmTerms(critic="shared", may_have_critic=True, has_ratio=False),
    "distill": AlgorithmTerms(clip=CLIP, reads_rewards=False),
    "sft": AlgorithmTerms(reads_rewards=False, is_supervised=True),
}


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
    """Optimizer steps in a pass. Groups are never split: fewer groups mean fewer steps."""
    clip_range: MayChange[_Epsilon | _Epsilons | None] = None
    """ε of the clipped ratio (`grpo`, `dr_grpo`, `gspo`, `cispo`, `ppo`, `distill`), or two of
    them, below and above: `[0.2, 0.28]` is clip-higher. None: `[0.0003, 0.0004]` with `gspo`,
    `[1, 4]` with `cispo` (no lower bound), else 0.2.
    """
    kl_coeff: MayChange[NonNegativeFloat] = 0.0
    """Weight of the KL to the reference, which is the base without the adapter, or the
    adapter that training started from.
    """
    entropy_coeff: MayChange[float | None] = Field(default=None, ge=0)
    """Weight of the entropy bonus. None: 0.01 with `ppo`, else 0."""
    importance_cap: MayChange[float | None] = Field(default=None, gt=0)
    """Truncated importance sampling: the cap on the ratio of the learner's probability to the
    engine's. None: 2.0 with `max_adapter_lag` above 0, else off.
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
    chats: str | None = Field(default=None, min_length=1)
    """JSONL or parquet file of [chats](algorithms.md#imitation-of-chats), or
    `hub:owner/name[:split]`, that algorithm `sft` learns from; with any other algorithm the warm
    start does. None: the oracle's episodes.
    """
    shuffle_rewards: bool = False
    """A control: deals each update's rewards out among its episodes at random, so that they
    teach nothing.
    """
    dynamic_sampling: MayChange[bool | Count] = False
    """Drops groups of equal returns before the update. A number is the limit of further groups that
    an iteration may sample in their place, until `num_groups` have unequal returns.
    """

    @property
    def terms(self) -> AlgorithmTerms:
        """What the algorithm reads, and its defaults."""
        return ALGORITHM_TERMS[self.algorithm]

    @property
    def clip(self) -> tuple[float, float]:
        """ε of the clipped ratio, below and above."""
        if isinstance(self.clip_range, float):
            return self.clip_range, self.clip_range
        return self.clip_range or self.terms.clip or CLIP

    @property
    def max_resampled_groups(self) -> int:
        """How many groups an iteration may sample in place of dropped ones."""
        return 0 if isinstance(self.dynamic_sampling, bool) else self.dynamic_sampling

    @property
    def is_taught_by_endpoint(self) -> bool:
        """Whether the teacher is a server's."""
        return (self.teacher or "").startswith(("http://", "https://"))

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in the run."""
        yield from self._unread()
        yield from self._additions(run)
        if self.group_size == 1 and (self.dynamic_sampling or self.terms.compares_groups):
            yield (
                f"training.group_size must be >= 2, got 1: algorithm {self.algorithm!r} or "
                "training.dynamic_sampling compares the episodes of a group"
            )
        if self.chats is not None and run.is_rl and run.warm_start.num_steps == 0:
            yield (
                f"training.chats {self.chats!r} are for algorithm 'sft' or a warm start: set "
                "warm_start.num_steps, or leave them out"
            )
        # RAFT alone imitates: its advantages are 0 and 1, but for a teacher's
        is_signed_raft = self.algorithm == "raft" and self.teacher is not None
        if (self.num_epochs or 1) > 1 and (is_signed_raft or not self.terms.has_ratio):
            yield (
                f"training.num_epochs {self.num_epochs}: the loss of algorithm {self.algorithm!r} "
                "has no ratio to the policy that sampled, which later epochs need: set it to 1, "
                "or take grpo, dr_grpo, gspo, cispo or ppo"
            )
        low, high = self.clip
        if high < low < 1:  # from 1 on it bounds nothing below
            yield f"training.clip_range [{low:g}, {high:g}]: the upper must be >= the lower"
        if 0 < self.num_iterations <= self.num_warmup_iterations:
            yield (
                f"training.num_warmup_iterations {self.num_warmup_iterations} must be below "
                f"training.num_iterations {self.num_iterations}"
            )

    def _unread(self) -> Iterator[str]:
        """Yields the settings that were changed though this algorithm does not read them."""
        changed = self.changed()
        for name in sorted(changed & self.terms.unread):
            readers = [known for known, its in ALGORITHM_TERMS.items() if name not in its.unread]
            yield (
                f"training.{name} has no effect with algorithm {self.algorithm!r} (it is for "
                f"{', '.join(readers)}): leave it at {dict(TrainingSettings())[name]!r}"
            )
        if self.algorithm == "ppo" and self.critic is None and changed & {"gamma", "lambda_"}:
            yield (
                "training.gamma and lambda_ have no effect without a critic: set training.critic "
                "to 'shared' or 'separate'"
            )

    def _additions(self, run: "Settings") -> Iterator[str]:
        """Yields what is wrong with the teacher."""
        if self.shuffle_rewards and self.teacher is not None:
            yield (
                "training.teacher would still tell the learner what is good, which "
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
