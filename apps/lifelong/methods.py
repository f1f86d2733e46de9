"""The methods that are compared, as a table: how each learns a stage after those before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal[
    "base", "in_context", "experts", "chain", "orthogonal", "bank", "router", "merged", "joint"
]
NUM_EXAMPLES = 4
"""Successes in the prompt of the method `in_context`."""
_UNREAD_BY_SFT = (
    *("training.clip_range", "training.dynamic_sampling"),
    *("training.entropy_coeff", "training.group_size", "training.importance_cap"),
    *("training.kl_coeff", "curriculum.sampling"),
)
_SFT = ("training.algorithm=sft", *(f"{name}=" for name in _UNREAD_BY_SFT))
"""Supervised steps; what they do not read is left at its default."""


@dataclass(frozen=True)
class Method:
    """A method by its kind, and what it changes.

    * `base`: the base alone; `in_context`: with successes of the last stage in its prompts.
    * `experts`: an adapter for each stage from the base, which answers its own stage alone.
    * `chain`: each stage trains the adapter of the stage before, with `overrides` of the
      settings, and `replay_share` of its tasks from earlier stages.
    * `orthogonal`: each stage trains a new adapter on a base that the earlier ones are merged into,
      orthogonal to them.
    * `bank`: the experts, of which the one of a task's stage answers; `router`: of which a
      classifier of the prompt chooses one.
    * `merged`: the experts so far as one adapter, by PEFT's combination type.
    * `joint`: one run on all stages at once, as long as all stages together.
    """

    about: str
    kind: Kind
    overrides: tuple[str, ...] = ()
    replay_share: float = 0.0
    combination: Literal["cat", "ties_svd"] = "cat"

    @property
    def shares_first_stage(self) -> bool:
        """Whether its first stage is the first stage's expert, by definition."""
        is_new = not any("algorithm" in each for each in self.overrides)
        return self.kind == "orthogonal" or (self.kind == "chain" and is_new)

    @property
    def keeps_all(self) -> bool:
        """Whether the adapters of all stages are needed in the end, not the last one's alone."""
        return self.kind in ("bank", "router", "experts", "orthogonal")


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "base": Method("the base, without an adapter", "base"),
        "in_context": Method(
            f"the base, with its last {NUM_EXAMPLES} successes of the last stage in the prompt",
            "in_context",
        ),
        "sequential": Method("one adapter, trained on stage after stage", "chain"),
        "replay_5": Method(
            "sequential, 5 % of the tasks from earlier stages", "chain", replay_share=0.05
        ),
        "replay_20": Method(
            "sequential, 20 % of the tasks from earlier stages", "chain", replay_share=0.2
        ),
        "kl": Method(
            "sequential, with a KL term to the adapter of the stage before",
            "chain",
            ("training.kl_coeff=0.1",),
        ),
        "o_lora": Method(
            "a new adapter a stage, orthogonal to the earlier ones and added to them", "orthogonal"
        ),
        "sft": Method("sequential, by imitation of the oracle in place of RL", "chain", _SFT),
        "bank": Method("an adapter a stage; the task's stage is told", "bank"),
        "router": Method("an adapter a stage; the prompt's words choose it", "router"),
        "average": Method("the stages' adapters, averaged", "merged"),
        "ties": Method("the stages' adapters, merged by TIES", "merged", combination="ties_svd"),
        "expert": Method("bound: each stage's adapter on its own stage", "experts"),
        "joint": Method("bound: one adapter, trained on all stages at once", "joint"),
    }
)
QUICK = ("base", "sequential", "replay_5", "bank", "joint")
"""The methods of a quick look."""
