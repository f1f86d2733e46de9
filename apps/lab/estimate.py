"""Says how long a run will take, from small iterations that are really sampled and learnt.

```sh
agentpeft estimate quickstart
agentpeft estimate my_settings.toml training.num_groups=64
```

Two are a part of an iteration, one twice the other; where that says that a whole one takes little
time, it is timed too. Sampling and learning are each taken for a line in the tokens that they
count, which then gives the seconds of a whole iteration. Task files, and the built-in model, are
made where they are missing.

Exit status: 0 done; 1 it failed; 2 wrong settings.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from statistics import fmean
from typing import TypeVar

from agentpeft.envs import SettingsError
from agentpeft.launch.data.task_files import with_task_files
from agentpeft.launch.run.command_line import CommandLine, SettingsWords, split_settings
from agentpeft.launch.run.run_folder import read_start
from agentpeft.policies.messages import EpisodeGroup
from agentpeft.policies.process_upkeep import present_objects_set_apart
from agentpeft.policies.settings.config import Settings

T = TypeVar("T")
_NUM_WARM_START_STEPS = 4
_WHOLE_S = 20.0
"""Where an iteration seems to take less, one is timed as it is."""
ASSUMED = (
    "each env runner and learner has this machine's speed to itself; the work is shared evenly",
    "episodes stay as long as they are now, and all of them are learnt from",
    "sampling and learning do not overlap; nothing is resampled; nothing fails",
    "starting Ray, loading models, proofs of delivery and saving are not counted",
    "the built-in model is at hand, warm-started: this has made it where it was not",
)
main = CommandLine()


@main.add(help=__doc__)
def estimate(words: SettingsWords = None) -> int:
    """Prints the minutes, by part, and what they assume. Raises: as `measure_run_time`."""
    settings = read_start(*split_settings(words)).settings
    if settings.env_runners.shared_engines is not None:
        raise SettingsError("estimate: how fast engines are that others use too is not known")
    for line in measure_run_time(with_task_files(settings)).describe():
        print(line)
    return 0


@dataclass(frozen=True)
class Timed:
    """What a small iteration took: tokens that it counted, seconds."""

    num_tokens: int
    seconds: float


@dataclass(frozen=True)
class RunTime:
    """The seconds that a run is expected to spend on its parts, and those of the measurement."""

    sampling_s: float
    learning_s: float
    delivery_s: float
    evaluation_s: float
    warm_start_s: float
    measured_s: float

    def describe(self) -> list[str]:
        """Returns lines with the minutes, and what they assume."""
        parts = {
            "sampling": self.sampling_s,
            "learning": self.learning_s,
            "delivery": self.delivery_s,
            "evaluation": self.evaluation_s,
            "warm start": self.warm_start_s,
        }
        total = sum(parts.values())
        return [
            f"time, from iterations that took {self.measured_s:.1f} s: "
            f"about {total / 60:,.1f} minutes",
            *(f"  {name:<13} {value / 60:>10,.1f} min" for name, value in parts.items()),
            "  which assumes:",
            *(f"  * {line}" for line in ASSUMED),
        ]


def extrapolate(small: Timed, large: Timed, num_tokens: float) -> float:
    """Returns the seconds of `num_tokens` on the line through two measurements.

    The line neither falls nor rises more steeply than through zero: the rest is noise. With
    (10 tokens, 3 s) and (20 tokens, 4 s), 100 tokens take 4 + 80 · 0.1 = 12 s.
    """
    if large.num_tokens == 0:
        return large.seconds
    proportional = large.seconds / large.num_tokens
    more = large.num_tokens - small.num_tokens
    slope = (large.seconds - small.seconds) / more if more > 0 else proportional
    slope = min(max(slope, 0.0), proportional)
    return large.seconds + slope * (num_tokens - large.num_tokens)


def measure_run_time(settings: Settings) -> RunTime:
    """Returns the time that a run with these settings will take; loads its model twice.

    The built-in model is made where it is not in the cache. Raises: SettingsError, DataError, and
    what sampling or learning raises.
    """
    training, evaluation = settings.training, settings.evaluation
    if settings.learners.shard_base:
        raise SettingsError(
            "the time is measured by one learner, which has no part of a sharded base: where the "
            "whole base fits, measure with learners.shard_base=false"
        )
    small_size, large_size = (
        min(
            training.num_groups,
            max(training.num_minibatches * k, ceil(training.num_groups * k / 8)),
        )
        for k in (1, 2)
    )
    with closing(_Trial(settings)) as trial:
        trial.iterate(small_size)  # warms up
        with present_objects_set_apart():  # as in a run
            small, large = trial.iterate(small_size), trial.iterate(large_size)
            measured_s = small.total_s + large.total_s
            if large.total_s * training.num_groups / large_size <= _WHOLE_S:
                large_size = training.num_groups
                small, large = large, trial.iterate(large_size)
                measured_s += large.total_s
            step_s = 0.0 if settings.is_tiny else trial.time_warm_start()
    runners = max(settings.env_runners.num_env_runners, 1)
    num_evaluated = evaluation.num_tasks * evaluation.samples_per_task
    between = (training.num_iterations - 1) // evaluation.interval if evaluation.interval else 0

    def sampling_s(num_episodes: int) -> float:
        tokens = large.sampled.num_tokens * num_episodes / large.num_episodes
        return extrapolate(small.sampled, large.sampled, tokens / runners)

    share = training.num_groups / large_size / settings.learners.num_learners
    learning_s = extrapolate(small.learnt, large.learnt, large.learnt.num_tokens * share)
    iteration_s = sampling_s(training.num_groups * training.group_size) if settings.is_rl else 0.0
    return RunTime(
        sampling_s=iteration_s * training.num_iterations,
        learning_s=learning_s * training.num_iterations,
        delivery_s=large.delivery_s * training.num_iterations,
        evaluation_s=sampling_s(num_evaluated) * (2 + between) if num_evaluated else 0.0,
        warm_start_s=step_s * settings.warm_start.num_steps / settings.learners.num_learners,
        measured_s=measured_s,
    )


@dataclass(frozen=True)
class _Iteration:
    """What a small iteration took, and how many episodes it sampled."""

    num_episodes: int
    sampled: Timed
    learnt: Timed
    delivery_s: float

    @property
    def total_s(self) -> float:
        return self.sampled.seconds + self.learnt.seconds + self.delivery_s


class _Trial:
    """A learner and an env runner of this process, as a run without Ray has them."""

    def __init__(self, settings: Settings) -> None:
        from agentpeft.policies.rollout.env_runner import EnvRunner
        from agentpeft.policies.workers.learner_group import LearnerActor

        self._settings, self._position = settings, 0
        self._learner = LearnerActor()
        self._learner.make(settings)
        self._runner = EnvRunner(settings)

    def iterate(self, num_groups: int) -> _Iteration:
        """Delivers, samples, and learns: from the oracle's episodes or chats with `sft`."""
        from torch import set_num_threads

        from agentpeft.policies.rollout.groups import GroupRequest

        settings, first = self._settings, self._position
        self._position += num_groups
        group_size = settings.training.group_size if settings.is_rl else 1
        requests = [GroupRequest(first + index, group_size) for index in range(num_groups)]
        set_num_threads(settings.threads_per_env_runner)
        _, delivery_s = _time(lambda: self._runner.load_adapter(self._learner.pack()[0]))
        played, sampling_s = _time(lambda: self._runner.sample(requests)[0])
        lessons = played if settings.is_rl else self._imitated(first, num_groups)
        lessons = [_with_spread(group) for group in lessons]
        set_num_threads(settings.threads_per_learner)
        _, learning_s = _time(lambda: self._learner.learner.update(lessons))
        episodes = [episode for group in played for episode in group.trajectories]
        learnt = [episode for group in lessons for episode in group.trajectories]
        return _Iteration(
            max(len(episodes), 1),
            Timed(sum(int(episode.loss_mask.sum()) for episode in episodes), sampling_s),
            Timed(sum(len(e.prompt_ids) + len(e.token_ids) for e in learnt), learning_s),
            delivery_s,
        )

    def time_warm_start(self) -> float:
        """Returns the seconds of a step of an adapter's warm start; the first warms up."""
        from agentpeft.policies.rollout.chat import make_chat
        from agentpeft.policies.rollout.oracle import warm_start_batches

        settings, learner = self._settings, self._learner.learner
        num_steps = min(settings.warm_start.num_steps, _NUM_WARM_START_STEPS)
        with closing(
            warm_start_batches(settings, make_chat(learner.policy.base, settings))
        ) as batches:
            steps_s = [
                _time(lambda: learner.sft_update(next(batches)))[1] for _ in range(num_steps)
            ]
        return fmean(steps_s[1:] or steps_s or [0.0])

    def close(self) -> None:
        self._runner.close()

    def _imitated(self, first: int, num_groups: int) -> list[EpisodeGroup]:
        from agentpeft.policies.rollout.chat import make_chat
        from agentpeft.policies.rollout.oracle import imitated_groups

        settings = self._settings
        chat = make_chat(self._learner.learner.policy.base, settings)
        source = settings.environment, settings.training.chats, chat, settings.seed, first
        with closing(imitated_groups(*source)) as groups:
            return list(islice(groups, num_groups))


def _with_spread(group: EpisodeGroup) -> EpisodeGroup:
    """Returns the group with other returns, all unequal to the mean: nothing is skipped."""
    episodes = [
        replace(
            episode,
            turn_rewards=(
                *(0.0,) * (len(episode.turn_ends) - 1),
                float((place + group.group_id) % 2),
            )
            if episode.turn_ends
            else (),
        )
        for place, episode in enumerate(group.trajectories)
    ]
    return replace(group, trajectories=tuple(episodes))


def _time(call: Callable[[], T]) -> tuple[T, float]:
    start_s = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start_s
