"""What is wrong with a training run, read from its metrics, and which setting to turn.

Each alarm is a pure function of the lines of `metrics.jsonl` up to an iteration, so that a running,
a resumed and a finished run are judged alike. An alarm is a hint, not an error: the run continues.

Low entropy, short answers and a large KL divergence are no faults by themselves: they are alarms
where success falls with them, there is none, or groups lose their spread.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import TypeAlias

Line: TypeAlias = Mapping[str, float | None]
"""A line of `metrics.jsonl`; None stands for what is no finite number."""

logger = logging.getLogger(__name__)
WINDOW = 3
"""An alarm looks at the last so many updates, and compares them with the first so many."""
SOLVED = 0.9
"""From this success rate on, low entropy, short answers and equal returns are what was wanted."""
MAX_KL = 1.0
"""Nats a token."""
_MIN_SPREAD = 0.1
"""Of the groups, with unequal returns: of fewer there is next to nothing to learn."""
_ONE_ANSWER = 0.01
"""Nats a token, below which the episodes of a group are alike."""


@dataclass(frozen=True)
class Alarm:
    """What was seen, and what to do about it, one sentence each."""

    name: str
    seen: str
    advice: str


@dataclass(frozen=True)
class _Updates:
    """A run's first updates, its last ones, and those before the last: `WINDOW` of each.

    `best` is the highest success rate of any `WINDOW` updates before the last.
    """

    first: Sequence[Line]
    before: Sequence[Line]
    last: Sequence[Line]
    best: float

    @property
    def is_fine(self) -> bool:
        """Whether the policy has solved its tasks, or is on the way."""
        now = _mean(self.last, "train/accuracy")
        return now >= SOLVED or now > _mean(self.before, "train/accuracy")

    @property
    def is_harmed(self) -> bool:
        """Whether success has fallen, there is none, or the groups have lost their spread."""
        has_none = _mean(self.last, "train/accuracy") == 0
        return not self.is_fine and (has_none or self._has_fallen or self._has_no_spread)

    @property
    def _has_fallen(self) -> bool:
        """Whether success is below the best by more than three standard errors."""
        now = _mean(self.last, "train/accuracy")
        num_episodes = sum(line.get("sample/num_episodes") or 0.0 for line in self.last)
        middle = (now + self.best) / 2
        return self.best - now > 3 * math.sqrt(2 * middle * (1 - middle) / max(num_episodes, 1.0))

    @property
    def _has_no_spread(self) -> bool:
        share = _mean(self.last, "sample/spread_share")
        if math.isnan(share):
            return _mean(self.last, "train/entropy") < _ONE_ANSWER
        return share < _MIN_SPREAD


_Rule: TypeAlias = Callable[[_Updates], Alarm | None]


def find_alarms(lines: Sequence[Line]) -> list[Alarm]:
    """Returns what is wrong at the last of `lines`; nothing before `2 * WINDOW` updates."""
    return _find_after(_trained(lines))


def _find_after(trained: Sequence[Line]) -> list[Alarm]:
    """Returns what is wrong after the updates of `trained`, of which its stage's count."""
    begin, middle = _begin_of_stage(trained), len(trained) - WINDOW
    if middle - WINDOW < begin:
        return []
    earlier = (trained[place : place + WINDOW] for place in range(begin, middle, WINDOW))
    updates = _Updates(
        trained[begin : begin + WINDOW],
        trained[middle - WINDOW : middle],
        trained[middle:],
        best=max(_mean(lines, "train/accuracy") for lines in earlier),
    )
    return [alarm for rule in _RULES if (alarm := rule(updates)) is not None]


def _begin_of_stage(trained: Sequence[Line]) -> int:
    """Returns how many updates there were before the curriculum's present stage.

    An update's line names the stage of the round after it, so a change counts from the next one on.
    """
    stages = [line.get("curriculum/stage") for line in trained]
    return max((n for n in range(2, len(stages) + 1) if stages[n - 2] != stages[n - 1]), default=0)


class AlarmLog:
    """Looks at a run as it goes: says once when an alarm goes up, and counts how long it is."""

    def __init__(self, earlier: Sequence[Line] = ()) -> None:
        """`earlier` are the lines that a resumed run has written already."""
        self._restart(earlier)

    def look(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Takes an iteration's metrics; returns `alarm/NAME`, its iterations so far with it up."""
        if self._lines and step <= (self._lines[-1]["train/step"] or 0):  # the learner died
            self._restart([line for line in self._lines if (line["train/step"] or 0) < step])
        line = {name: v if math.isfinite(v) else None for name, v in metrics.items()}
        for alarm in self._look({**line, "train/step": step}):
            logger.warning("%s: %s; %s", alarm.name, alarm.seen, alarm.advice)
        return {f"alarm/{name}": float(count) for name, count in sorted(self._counts.items())}

    def _restart(self, earlier: Sequence[Line]) -> None:
        self._lines: list[Line] = []
        self._up: set[str] = set()
        self._counts: Counter[str] = Counter()
        for line in _trained(earlier):
            self._look(line)

    def _look(self, line: Line) -> list[Alarm]:
        """Returns the alarms that have gone up with a line."""
        self._lines.append(line)
        alarms = _find_after(self._lines)
        new = [alarm for alarm in alarms if alarm.name not in self._up]
        self._up = {alarm.name for alarm in alarms}
        self._counts.update(self._up)
        return new


@dataclass(frozen=True)
class AlarmPeriod:
    """An alarm of a finished run: as it was when it went up, and from which step to which."""

    alarm: Alarm
    first_step: int
    last_step: int


def find_periods(lines: Sequence[Line]) -> list[AlarmPeriod]:
    """Returns when each alarm of a run was up, in the order in which they went up."""
    periods: list[AlarmPeriod] = []
    trained = _trained(lines)
    for number, line in enumerate(trained, 1):
        step = int(line["train/step"] or 0)
        for alarm in _find_after(trained[:number]):
            numbers = [n for n, e in enumerate(periods) if e.alarm.name == alarm.name]
            if numbers and periods[numbers[-1]].last_step == step - 1:
                periods[numbers[-1]] = replace(periods[numbers[-1]], last_step=step)
            else:
                periods.append(AlarmPeriod(alarm, step, step))
    return periods


def _trained(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.get("train/accuracy") is not None]


def _no_spread(updates: _Updates) -> Alarm | None:
    """Every group's episodes earn the same, so that nothing has an advantage."""
    skipped = [line.get("train/num_skipped_updates") or 0.0 for line in updates.last]
    grows = all(late > early for early, late in pairwise(skipped))
    is_finite = not any(line.get("train/num_nonfinite_steps") for line in updates.last)
    if updates.is_fine or not grows or not is_finite:  # it counts from the start of the run
        return None
    success = _mean(updates.last, "train/accuracy")
    return Alarm(
        "no_spread",
        f"in the last {WINDOW} updates all episodes of a group had the same return "
        f"(success {success:.0%}), so nothing was learnt",
        "give easier tasks or a longer warm start (warm_start.num_steps), more samples of a task "
        "(training.group_size), or a reward that tells more (environment.kwargs.reward)",
    )


def _entropy_collapse(updates: _Updates) -> Alarm | None:
    """The policy says less and less different things, and that does harm."""
    before = max(line.get("train/entropy") or 0.0 for line in updates.first)
    now = _mean(updates.last, "train/entropy")
    if not updates.is_harmed or not now < 0.2 * before:
        return None
    return Alarm(
        "entropy_collapse",
        f"the entropy fell from {before:.3g} to {now:.3g} nats a token, and {_say_harm(updates)}",
        "lower training.lr, give entropy a weight (training.entropy_coeff), or hold the policy to "
        "its start (training.kl_coeff)",
    )


def _length_collapse(updates: _Updates) -> Alarm | None:
    """Episodes become much shorter, and worse or all alike."""
    before, now = max(map(_tokens, updates.first)), fmean(map(_tokens, updates.last))
    if not updates.is_harmed or not now < 0.3 * before:
        return None
    return Alarm(
        "length_collapse",
        f"an episode has {now:.0f} sampled tokens, where it had {before:.0f} at the start, and "
        f"{_say_harm(updates)}",
        "lower the reward's length_cost (environment.kwargs.reward) or training.lr",
    )


def _cut_turns(updates: _Updates) -> Alarm | None:
    """Turns are cut in their middle, one or more in every second episode."""
    share = _share(updates.last, "sample/num_cut_turns")
    if updates.is_fine or not share > 0.5:
        return None
    return Alarm(
        "cut_turns",
        f"{share:.2g} turns of an episode were cut at env_runners.max_new_tokens, on average",
        "raise env_runners.max_new_tokens",
    )


def _all_invalid(updates: _Updates) -> Alarm | None:
    """The environment understands almost nothing of what the policy says."""
    share = _share(updates.last, "sample/outcome/invalid_action")
    if updates.is_fine or not share > 0.8:
        return None
    return Alarm(
        "all_invalid",
        f"{share:.0%} of the episodes end with an action that the environment cannot read",
        "read episodes (agentpeft replay RUN --failed); take a warm start (warm_start.num_steps), "
        "a model that knows the action format, or a reward for the format (reward.format_bonus)",
    )


def _kl_runaway(updates: _Updates) -> Alarm | None:
    """The policy is far from its reference, and the worse for it."""
    now = _mean(updates.last, "train/kl")
    if not updates.is_harmed or not now > MAX_KL:
        return None
    return Alarm(
        "kl_runaway",
        f"the KL divergence to the reference is {now:.3g} nats a token, and {_say_harm(updates)}",
        "lower training.lr or training.max_grad_norm, or raise training.kl_coeff",
    )


_RULES: Sequence[_Rule] = (
    _no_spread,
    _entropy_collapse,
    _length_collapse,
    _cut_turns,
    _all_invalid,
    _kl_runaway,
)


def _say_harm(updates: _Updates) -> str:
    now = _mean(updates.last, "train/accuracy")
    if now < updates.best:
        return f"success fell from {updates.best:.0%} to {now:.0%}"
    if now == 0:
        return "no episode succeeds"
    return f"almost no group's episodes differ in their returns (success {now:.0%})"


def _mean(lines: Sequence[Line], name: str) -> float:
    """Returns a metric's mean, NaN (which no comparison is true of) where it is missing."""
    values = [value for line in lines if (value := line.get(name)) is not None]
    return fmean(values) if len(values) == len(lines) else math.nan


def _share(lines: Sequence[Line], name: str) -> float:
    episodes = sum(line.get("sample/num_episodes") or 0.0 for line in lines)
    return sum(line.get(name) or 0.0 for line in lines) / episodes if episodes else 0.0


def _tokens(line: Line) -> float:
    return _share([line], "sample/num_sampled_tokens")
