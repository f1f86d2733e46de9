"""The sums that an update's metrics are made of."""

import math
from dataclasses import dataclass, field


@dataclass
class Totals:
    """Sums over a part of an update, which the metrics are made of.

    `loss`: of the weighted tokens and turns. `sums`: by name, a sum over tokens or turns and how
    many these were.
    """

    loss: float = 0.0
    mismatch_max: float = 0.0
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, other: "Totals") -> None:
        """Takes in the totals of another part of the same update."""
        self.loss += other.loss
        self.mismatch_max = max(self.mismatch_max, other.mismatch_max)
        for name, (value, count) in other.sums.items():
            value_so_far, count_so_far = self.sums.get(name, (0.0, 0))
            self.sums[name] = value_so_far + value, count_so_far + count

    def metrics(self) -> dict[str, float]:
        """Returns the means over what was computed; NaN if that is nothing."""
        if not self.sums:
            return {"train/policy_loss": math.nan, "train/mismatch_max": math.nan}
        means = {f"train/{name}": value / count for name, (value, count) in self.sums.items()}
        return {**means, "train/mismatch_max": self.mismatch_max}
