"""Proofs: what the reward taught, and how much of it is form, in the base already, or new.

```python
from agentpeft.apps.prove import prove

proof = prove(["arithmetic_add"], num_seeds=3)
print(proof.verdict.sentence)
```
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports torch, which the command's help does without
    from agentpeft.apps.prove.split import RewardProof


def prove(
    words: Sequence[str],
    *,
    num_seeds: int | None = None,
    seeds: Sequence[int] = (),
    is_quick: bool = False,
    output: Path | str | None = None,
) -> "RewardProof":
    """Trains and measures what `agentpeft prove WORDS` does, and writes the same files.

    `words` are configs, then dotted settings. `num_seeds` counts from the settings' seed on, unless
    `seeds` names them. Raises: SettingsError, TrainingError, Stopped, and what a run raises.
    """
    from agentpeft.apps.prove.study import plan_study, run_study

    return run_study(plan_study(words, num_seeds, seeds, is_quick=is_quick, output=output))
