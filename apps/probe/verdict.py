"""From log-probabilities to a verdict: which of several hypotheses an endpoint's answers fit.

Our computation gives what the endpoint would say if it served the adapter, the base, the adapter
at another scale, or the adapter without some kinds of its modules. The verdict is the hypothesis
that is nearest, if it is near enough, and much nearer than the adapter.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

import numpy as np

from agentpeft.policies.delivery.probe import MIN_CANARY, can_be_told, choose_limit, compute_share
from agentpeft.policies.messages import Floats

NOISE_FACTOR = 3.0
"""An endpoint may be this many times as far from the adapter as its base is from ours."""
MUCH_NEARER = 0.6
"""Another hypothesis is taken if its distance is below this share of the adapter's."""


class Served(StrEnum):
    """Whether the adapter is served."""

    YES = "served"
    NO = "not served"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Judgement:
    """An answer, the reason in a sentence, and the figures behind it."""

    answer: Served
    reason: str
    figures: dict[str, object] = field(default_factory=dict)


Say = Callable[[float, frozenset[str]], Floats]
"""Returns log-probabilities (N,) with the adapter's change times a factor, without some modules."""


def judge(
    given: Floats,
    base: Floats,
    say: Say,
    modules: Collection[str],
    factors: Collection[float],
    noise: float | None = None,
) -> Judgement:
    """Returns what an endpoint serves that gave log-probabilities `given` (N,), in nats.

    Args:
        given: The endpoint's.
        base: Ours of the base, of the same tokens.
        say: Ours of the adapter, whole or changed.
        modules: The kinds of layers that the adapter changes.
        factors: Usual mistakes in the adapter's scale.
        noise: How far the endpoint's base is from `base`, as the mean; None: it is not known.
    """
    adapter = say(1.0, frozenset())
    rounding = choose_limit(adapter, in_bfloat16=True)
    if noise is not None and noise > rounding:
        reason = f"its base is {noise:.2g} nats a token from this base (limit {rounding:.2g})"
        return Judgement(Served.NO, f"{reason}: it is another model, or another tokenizer")
    exact = choose_limit(adapter, in_bfloat16=False)
    limit = rounding if noise is None else max(exact, NOISE_FACTOR * noise)
    own, to_base = distance(given, adapter), distance(given, base)
    effect = distance(adapter, base)
    figures: dict[str, object] = {
        "num_tokens": len(given),
        "limit": limit,
        "effect": effect,
        "distance_to_adapter": own,
        "distance_to_base": to_base,
    }
    other = (
        f"{own:.2g} nats a token from the adapter (limit {limit:.2g}), and {to_base:.2g} from the "
        "base: another adapter or another model answers"
    )
    if not can_be_told(adapter - base, limit):
        if min(own, to_base) > limit:
            return Judgement(Served.NO, other, figures)
        reason = f"the adapter changes {effect:.2g} nats a token, rounding {limit:.2g}"
        return Judgement(Served.UNKNOWN, f"{reason}: train it further, or use --canary", figures)
    canary = figures["canary"] = compute_share(given - base, adapter - base)
    ignored = find_ignored(given, say, modules) if own > limit else frozenset()
    hypotheses = {"the base answers, without the adapter": base}
    for factor in factors:
        name = f"the adapter's scale is wrong: {factor:.3g} times what its settings say"
        hypotheses[name] = say(factor, frozenset())
    if 0 < len(ignored) < len(modules):
        names = ", ".join(sorted(ignored))
        hypotheses[f"the adapter's weights of {names} are ignored"] = say(1.0, ignored)
    distances = {name: distance(given, said) for name, said in hypotheses.items()}
    nearest = min(distances, key=lambda name: distances[name])
    if distances[nearest] <= limit and distances[nearest] < MUCH_NEARER * own:
        return Judgement(Served.NO, nearest, figures)
    if own > limit:
        return Judgement(Served.NO, other, figures)
    if canary < MIN_CANARY:
        reason = f"{max(canary, 0):.0%} of the adapter's effect is shown"
        return Judgement(Served.NO, f"{reason}: the base answers, or part of it", figures)
    unseen = find_unseen(say, modules, limit)
    figures["modules_too_small_to_tell"] = unseen
    reason = f"{own:.2g} nats a token from the adapter, {to_base:.2g} from the base"
    reason += f"; too small to tell alone: {', '.join(unseen)}" if unseen else ""
    return Judgement(Served.YES, reason, figures)


def find_ignored(given: Floats, say: Say, modules: Collection[str]) -> frozenset[str]:
    """Returns the modules without which the adapter is nearest to what was given (N,).

    From none, and from all, one or two are added or taken away as long as that comes nearer.
    """

    def far(ignored: frozenset[str]) -> float:
        return distance(given, say(1.0, ignored))

    changes = [frozenset(c) for n in (1, 2) for c in combinations(sorted(modules), n)]
    found = []
    for start in (frozenset[str](), frozenset(modules)):
        ignored, nearer = start, min((start ^ change for change in changes), key=far)
        while far(nearer) < far(ignored):
            ignored, nearer = nearer, min((nearer ^ change for change in changes), key=far)
        found.append(ignored)
    return min(found, key=far)


def find_unseen(say: Say, modules: Collection[str], limit: float) -> list[str]:
    """Returns the modules whose own effect, beside the others, is too small to be told."""
    whole = say(1.0, frozenset())
    return [n for n in sorted(modules) if not can_be_told(whole - say(1.0, frozenset({n})), limit)]


def distance(one: Floats, other: Floats) -> float:
    """Returns the mean difference, in nats a token."""
    return float(np.abs(one - other).mean())
