"""The algorithms: each is an advantage estimator and a policy loss.

A new one takes about a dozen lines. Write its estimator in `advantages.py` (one group's returns in,
one advantage per episode out) or its loss in `losses.py` (log-probabilities, old ones, advantages,
clip range in; one loss per token out), unless there is one that fits; then name it in
`AlgorithmName` of `settings/training.py`, add a line to `ALGORITHM_TERMS` there, which says what it
reads of the settings and its defaults, and one to `ALGORITHMS` here:

    def sign_of_centred(returns):
        return np.sign(returns - returns.mean())

    "sign": AlgorithmTerms(compares_groups=True),
    "sign": AlgorithmSpec(sign_of_centred, policy_gradient),

The tests parametrized over `ALGORITHMS` then cover it.
"""

from dataclasses import dataclass, replace
from typing import Literal

from agentpeft.policies.learning import advantages, losses
from agentpeft.policies.settings.config import TrainingSettings
from agentpeft.policies.settings.training import CLIP, AlgorithmName, CriticKind, Normalization


@dataclass(frozen=True)
class AlgorithmSpec:
    """The parts of an algorithm; from `normalization` on, what the settings make of its terms.

    With `has_moving_baseline`, the average of earlier updates' mean returns is taken from each
    return. With `critic`, GAE takes the place of `advantage`. `whitens_advantages` then counts over
    all turns of an update, else over all its episodes. `ratio` says whose probability ratio to the
    old policy the loss sees: each token's own, or that of its whole sequence (GSPO). A loss that
    does not clip has a `clip` for the metric `train/clip_fraction` alone.
    """

    advantage: advantages.Advantage
    policy_loss: losses.PolicyLoss
    has_moving_baseline: bool = False
    ratio: Literal["token", "sequence"] = "token"
    whitens_advantages: bool = False
    normalization: Normalization = "token"
    num_epochs: int = 1
    clip: losses.ClipRange = losses.ClipRange(*CLIP)  # noqa: RUF009 (it is frozen)
    entropy_coeff: float = 0.0
    critic: CriticKind | None = None
    is_supervised: bool = False


_PG, _CLIPPED = losses.policy_gradient, losses.clipped_ratio
ALGORITHMS: dict[AlgorithmName, AlgorithmSpec] = {
    "reinforce": AlgorithmSpec(advantages.plain_returns, _PG, has_moving_baseline=True),
    "rloo": AlgorithmSpec(advantages.leave_one_out, _PG),
    "grpo": AlgorithmSpec(advantages.group_standardized, _CLIPPED),
    "dr_grpo": AlgorithmSpec(advantages.group_centred, _CLIPPED),
    "gspo": AlgorithmSpec(advantages.group_standardized, _CLIPPED, ratio="sequence"),
    "cispo": AlgorithmSpec(advantages.group_standardized, losses.clipped_weight),
    "raft": AlgorithmSpec(advantages.best_of_group, _PG),
    "ppo": AlgorithmSpec(
        advantages.plain_returns, _CLIPPED, has_moving_baseline=True, whitens_advantages=True
    ),
    "a2c": AlgorithmSpec(advantages.plain_returns, _PG),
    "distill": AlgorithmSpec(advantages.no_reward, _CLIPPED),
    "sft": AlgorithmSpec(advantages.imitation, _PG),
}


def algorithm_of(training: TrainingSettings) -> AlgorithmSpec:
    """Returns the algorithm that the settings name, with their numbers or its defaults."""
    terms = training.terms
    entropy = training.entropy_coeff
    return replace(
        ALGORITHMS[training.algorithm],
        normalization=terms.normalization,
        num_epochs=training.num_epochs or terms.num_epochs,
        clip=losses.ClipRange(*training.clip),
        entropy_coeff=terms.entropy_coeff if entropy is None else entropy,
        critic=training.critic or terms.critic,
        is_supervised=terms.is_supervised,
    )
