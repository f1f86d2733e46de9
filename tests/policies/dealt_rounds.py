"""Rounds whose groups are dealt to the runners up front, computed: what taking is compared with."""

import heapq
from statistics import fmean

from agentpeft.policies.rollout.environments import TRAIN_STREAM


def deal(settings, simulation, num_rounds, num_warmups):
    """Returns how busy the slots are, and the seconds of an iteration.

    Runner r of n plays groups r, r + n, … of a round, its next episode whenever one ends, and the
    next round once it has played its share. The learner waits for all. With a lag of l the rounds
    up to l after the present one are under way.
    """
    own, training = settings.env_runners, settings.training
    runners, lag = range(own.num_env_runners), settings.max_adapter_lag
    free_s = [0.0] * len(runners)
    starts_s, ends_s, spent_s = [0.0], [], []
    for number in range(num_rounds):
        asked_s = starts_s[max(number - lag, 0)]
        first = number * training.num_groups
        shares = [range(first + r, first + training.num_groups, len(runners)) for r in runners]
        lengths_s = [
            [
                simulation.length_s((settings.seed, TRAIN_STREAM, group, sample, 0))
                for group in share
                for sample in range(training.group_size)
            ]
            for share in shares
        ]
        free_s = [
            max(free, asked_s) + makespan(lengths, own.max_concurrent_episodes)
            for free, lengths in zip(free_s, lengths_s, strict=True)
        ]
        spent_s.append(sum(map(sum, lengths_s)))
        ends_s.append(max(*free_s, starts_s[-1]) + simulation.learn_s)
        starts_s.append(ends_s[-1])
    slots = len(runners) * own.max_concurrent_episodes
    iteration_s = (ends_s[-1] - ends_s[num_warmups - 1]) / (num_rounds - num_warmups)
    busy = fmean(spent_s[num_warmups:]) / (slots * iteration_s)
    return {"busy": round(busy, 3), "iteration_s": round(iteration_s, 3)}


def makespan(lengths_s, num_slots):
    """Returns when all are over, if each begins as soon as a slot is free.

    Example:
        >>> makespan([3, 1, 1, 1], 2)
        3
    """
    slots = [0] * num_slots
    for length_s in lengths_s:
        heapq.heapreplace(slots, slots[0] + length_s)
    return max(slots)
