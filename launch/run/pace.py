"""How long a run still takes, and what a success has cost it."""

import time
from collections import deque
from collections.abc import Iterable, Mapping

from agentpeft.launch.costs.energy import ENERGY, EnergyMeter

_WINDOW = 10
LEFT = "time/left_s"
"""The metric of the seconds that a run still takes."""


class Pace:
    """Expects of the iterations to come what the last ten took, evaluations and saving included."""

    def __init__(self, num_iterations: int, meter: EnergyMeter | None = None) -> None:
        """The first iteration begins now. `meter` None is this machine's."""
        self._num_iterations, self._meter = num_iterations, meter or EnergyMeter()
        self._ends_s = deque([time.monotonic()], _WINDOW + 1)

    def end_iteration(self, iteration: int) -> dict[str, float]:
        """Returns the seconds left after an iteration, and its energy where that is counted."""
        self._ends_s.append(time.monotonic())
        mean_s = (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
        energy_wh = self._meter.take_wh()
        energy = {} if energy_wh is None else {ENERGY: energy_wh}
        return {LEFT: mean_s * max(self._num_iterations - iteration, 0), **energy}


def compute_cost(lines: Iterable[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Returns the seconds of training and the sampled tokens for each episode that succeeded.

    Over all lines of `metrics.jsonl`, evaluations left out; None where nothing has succeeded, as
    with algorithm `sft`, which plays no episodes. Watt-hours are there where they were counted,
    those of evaluations between iterations with them.
    """
    lines = list(lines)
    totals = {
        "seconds": _sum_of(lines, "time/total_s"),
        "tokens": _sum_of(lines, "sample/num_sampled_tokens"),
        **compute_energy(lines),
    }
    successes = _sum_of(lines, "sample/outcome/success")
    digits = {"seconds": 4, "tokens": 1, "watt_hours": 6}
    return {
        name: round(total / successes, digits[name]) if successes else None
        for name, total in totals.items()
    }


def compute_energy(lines: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    """Returns the watt-hours of all iterations; nothing where none were counted."""
    counted = [wh for line in lines if (wh := line.get(ENERGY)) is not None]
    return {"watt_hours": round(sum(counted), 6)} if counted else {}


def _sum_of(lines: Iterable[Mapping[str, float | None]], name: str) -> float:
    return sum(line.get(name) or 0.0 for line in lines)
