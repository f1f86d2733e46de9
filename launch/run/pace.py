"""How long a run still takes, and what a success has cost it."""

import time
from collections import deque
from collections.abc import Iterable, Mapping

_WINDOW = 10
LEFT = "time/left_s"
"""The metric of the seconds that a run still takes."""


class Pace:
    """Expects of the iterations to come what the last ten took, evaluations and saving included."""

    def __init__(self, num_iterations: int) -> None:
        """The first iteration begins now."""
        self._num_iterations = num_iterations
        self._ends_s = deque([time.monotonic()], _WINDOW + 1)

    def end_iteration(self, iteration: int) -> dict[str, float]:
        """Returns the seconds left after an iteration."""
        self._ends_s.append(time.monotonic())
        mean_s = (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
        return {LEFT: mean_s * max(self._num_iterations - iteration, 0)}


def compute_cost(lines: Iterable[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Returns the seconds of training and the sampled tokens for each episode that succeeded.

    Over all lines of `metrics.jsonl`, evaluations left out; None where nothing has succeeded, as
    with algorithm `sft`, which plays no episodes.
    """
    lines = list(lines)
    totals = {
        "seconds": _sum_of(lines, "time/total_s"),
        "tokens": _sum_of(lines, "sample/num_sampled_tokens"),
    }
    successes = _sum_of(lines, "sample/outcome/success")
    digits = {"seconds": 4, "tokens": 1}
    return {
        name: round(total / successes, digits[name]) if successes else None
        for name, total in totals.items()
    }


def _sum_of(lines: Iterable[Mapping[str, float | None]], name: str) -> float:
    return sum(line.get(name) or 0.0 for line in lines)
