"""The algorithms: each is an advantage estimator and a policy loss, with defaults.

A new one takes about a dozen lines. Write its estimator in `advantages.py` (one group's returns in,
one advantage per episode out) or its loss in `losses.py` (log-probabilities, old ones, advantages,
clip range in; one loss per token out), unless there is one that fits; then name it in
`AlgorithmName` of `settings/training.py` and add a line to `ALGORITHMS`:

    def sign_of_centred(returns, baseline):
        return np.sign(returns - returns.mean())

    "sign": AlgorithmSpec(sign_of_centred, policy_gradient, "token"),

The tests parametrized over `ALGORITHMS` then cover it.
"""

from dataclasses import dataclass, replace
from typing import Literal

from agentpeft.policies.learning import advantages, losses
from agentpeft.policies.settings.config import TrainingSettings
from agentpeft.policies.settings.training import CriticKind, Normalization

_CLIP = losses.ClipRange(0.2, 0.2)


@dataclass(frozen=True)
class AlgorithmSpec:
    """The parts of an algorithm and its defaults, which settings that are not None override.

    With `critic`, GAE takes the place of `advantage`. `whitens_advantages` then counts over all
    turns of an update, else over all its episodes. `ratio` says whose probability ratio to the old
    policy the loss sees: each token's own, or that of its whole sequence (GSPO).
    """

    advantage: advantages.Advantage
    policy_loss: losses.PolicyLoss
    normalization: Normalization
    num_epochs: int = 1
    clip: losses.ClipRange = _CLIP
    ratio: Literal["token", "sequence"] = "token"
    entropy_coeff: float = 0.0
    critic: CriticKind | None = None
    whitens_advantages: bool = False
    is_supervised: bool = False


_PG, _CLIPPED = losses.policy_gradient, losses.clipped_ratio
ALGORITHMS: dict[str, AlgorithmSpec] = {
    "reinforce": AlgorithmSpec(advantages.moving_baseline, _PG, "token"),
    "rloo": AlgorithmSpec(advantages.leave_one_out, _PG, "token"),
    "grpo": AlgorithmSpec(advantages.group_standardized, _CLIPPED, "token"),
    "dr_grpo": AlgorithmSpec(advantages.group_centred, _CLIPPED, "constant"),
    "gspo": AlgorithmSpec(
        advantages.group_standardized,
        _CLIPPED,
        "sequence",
        clip=losses.ClipRange(3e-4, 4e-4),
        ratio="sequence",
    ),
    "cispo": AlgorithmSpec(
        advantages.group_standardized,
        losses.clipped_weight,
        "token",
        clip=losses.ClipRange(1.0, 4.0),
    ),
    "raft": AlgorithmSpec(advantages.best_of_group, _PG, "sequence"),
    "ppo": AlgorithmSpec(
        advantages.moving_baseline,
        _CLIPPED,
        "token",
        num_epochs=2,
        entropy_coeff=0.01,
        whitens_advantages=True,
    ),
    "a2c": AlgorithmSpec(advantages.moving_baseline, _PG, "token", critic="shared"),
    "distill": AlgorithmSpec(advantages.no_reward, _CLIPPED, "token"),
    "sft": AlgorithmSpec(advantages.imitation, _PG, "token", is_supervised=True),
}


def algorithm_of(training: TrainingSettings) -> AlgorithmSpec:
    """Returns the algorithm that the settings name, with their overrides."""
    spec = ALGORITHMS[training.algorithm]
    low = spec.clip.low if training.clip_range is None else training.clip_range
    high = low if training.clip_range is not None else spec.clip.high
    high = high if training.clip_range_high is None else training.clip_range_high
    entropy = training.entropy_coeff
    return replace(
        spec,
        normalization=training.loss_normalization or spec.normalization,
        num_epochs=training.num_epochs or spec.num_epochs,
        clip=losses.ClipRange(low, high),
        entropy_coeff=spec.entropy_coeff if entropy is None else entropy,
        critic=training.critic or spec.critic,
    )
