"""How far a policy has gone from what it was: the KL divergence on tasks that it played before."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.evaluating.contest import open_runner
from agentpeft.launch.evaluating.players import Contestant, Methods, open_policy, playing
from agentpeft.policies.messages import Ids, Trajectory
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings

_NUM_TASKS = 32
_NUM_SAMPLES = 2
"""Of each task: single episodes would be greedy."""


def measure_drift(settings: Settings, previous: Contestant, now: Contestant, path: Path) -> float:
    """Returns KL(previous || now) per token, in nats, on the settings' held-out tasks.

    The first 32 tasks are played twice by `previous` at temperature 1. At each token that it
    samples, the two distributions over the vocabulary are compared exactly; the result is the mean
    over these tokens. It is kept in the file `path`, and read from it if it is there.
    """
    if not path.is_file():
        torch.set_num_threads(settings.threads_per_env_runner)
        episodes = _play(settings, previous)
        divergences = _compare(settings, previous, now, episodes)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"kl": float(np.mean(divergences)), "num_tokens": len(divergences)}
        write_file(path, json.dumps(content).encode())
    kl: float = json.loads(path.read_text(encoding="utf-8"))["kl"]
    return kl


def token_divergences(previous: Tensor, now: Tensor) -> Tensor:
    """Returns KL(previous || now) of each row of logits (N, V), in nats: (N,).

    >>> log = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    >>> [round(value, 4) for value in token_divergences(log[:1], log[1:]).tolist()]
    [0.1438]
    """
    p, q = previous.log_softmax(-1), now.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def _play(settings: Settings, player: Contestant) -> list[Trajectory]:
    """Returns the episodes in which something was sampled."""
    limits = settings.env_runners.model_copy(update={"temperature": 1.0})
    settings = settings.model_copy(update={"env_runners": limits})
    num_tasks = min(_NUM_TASKS, settings.evaluation.num_tasks)
    with open_runner(playing(settings, player, Methods())) as (_, runner):
        requests = [GroupRequest(p, _NUM_SAMPLES, "eval") for p in range(num_tasks)]
        groups, _ = runner.sample(requests)
    return [t for group in groups for t in group.trajectories if t.loss_mask.any()]


@torch.inference_mode()
def _compare(
    settings: Settings, previous: Contestant, now: Contestant, episodes: Sequence[Trajectory]
) -> list[float]:
    """Returns the divergence at each sampled token; one episode's logits are made at a time."""
    models = [open_policy(settings, each).model for each in (previous, now)]
    found: list[float] = []
    for episode in episodes:
        ids: Ids = np.concatenate([episode.prompt_ids, episode.token_ids])
        places = len(episode.prompt_ids) - 1 + np.flatnonzero(episode.loss_mask)
        tokens = torch.from_numpy(ids[None, :-1])
        logits = [
            model(input_ids=tokens.to(model.device), use_cache=False).logits[0, places].float()
            for model in models
        ]
        found += token_divergences(*logits).tolist()
    return found
