"""What do several learners gain over one, and what does the sum of their gradients cost?

    python benchmarks/several_learners.py

One thread a learner, rank-16 LoRA on a model with random weights, the same batch of random episodes
(a group's sampled tokens, without equal answers). Prints one JSON line: for each number of learners
the median seconds of an update in learner 0, and of the sum alone, its share of the update, and the
ratio of updates' seconds (the fewest learners' / the most's).
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import numpy as np
import ray

from agentpeft.envs import Outcome
from agentpeft.policies.messages import EpisodeGroup, Ref, Trajectory
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.actors import resolve
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup


def make_settings(args: argparse.Namespace, num_learners: int) -> Settings:
    """Returns the service's settings, the rest being its defaults."""
    overrides = [
        f"tiny.hidden_size={args.hidden_size}",
        f"training.num_groups={args.num_groups}",
        "training.entropy_coeff=0.01",  # every episode counts, whatever its reward
        f"learners.num_learners={num_learners}",
        "num_threads=1",  # each
    ]
    return Settings(**with_overrides({}, overrides))


def make_groups(args: argparse.Namespace) -> list[EpisodeGroup]:
    """Returns groups of 8 episodes of one turn; no two are alike."""
    rng = np.random.default_rng(0)
    groups = []
    for position in range(args.num_groups):
        prompt = rng.integers(0, 300, args.num_prompt_tokens)
        episodes = []
        for sample in range(8):
            tokens = rng.integers(0, 300, rng.integers(1, args.num_tokens + 1))
            mask, logprobs = np.ones(len(tokens), bool), np.full(len(tokens), -5.0, np.float32)
            ends, rewards = (len(tokens),), (float(sample % 2),)
            episodes.append(
                Trajectory(prompt, tokens, mask, logprobs, ends, rewards, Outcome.FAILURE)
            )
        groups.append(EpisodeGroup(position, str(position), (), 0, tuple(episodes)))
    return groups


class TimedLearner(LearnerActor):
    """A learner that times its updates."""

    def time_update(self, groups: Sequence[Ref]) -> tuple[float, float]:
        """Returns the seconds of an update, and of one more sum of its gradients."""
        learner, episodes = self.learner, resolve(groups)
        learner.peers.gather(None)
        start_s = time.perf_counter()
        learner.update(episodes)
        update_s = time.perf_counter() - start_s
        learner.peers.gather(None)
        start_s = time.perf_counter()
        learner.peers.sum_gradients(learner.policy.trainable_parameters())
        return update_s, time.perf_counter() - start_s


def measure(args: argparse.Namespace, num_learners: int) -> dict[str, float]:
    """Returns the medians of one number of learners."""
    learners = LearnerGroup(make_settings(args, num_learners), TimedLearner)
    refs = [ray.put(group) for group in make_groups(args)]
    times = [
        learners.call_all(TimedLearner.time_update, refs) for _ in range(args.num_updates + 2)
    ][2:]
    learners.close()
    update_s, sum_s = (statistics.median(part) for part in zip(*times, strict=True))
    return {
        "update_s": round(update_s, 4),
        "sum_s": round(sum_s, 5),
        "share_of_sum": round(sum_s / update_s, 5),
    }


def main() -> None:
    """Measures one number of learners after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-learners", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--num-updates", type=int, default=10)
    parser.add_argument("--num-groups", type=int, default=32)
    parser.add_argument("--num-prompt-tokens", type=int, default=200)
    parser.add_argument("--num-tokens", type=int, default=56, help="of the longest episode")
    parser.add_argument("--hidden-size", type=int, default=192)
    args = parser.parse_args()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    result = {str(number): measure(args, number) for number in args.num_learners}
    first, last = (result[str(args.num_learners[i])]["update_s"] for i in (0, -1))
    line = {"benchmark": "several_learners", **result, "ratio": round(first / last, 3)}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
