"""Whether evaluation is held out: what the settings say of it, and what training has seen.

A seen task is one whose content training has learnt from, in RL or imitation; its id does not
matter. Tasks of the warm start, and those that an adapter was trained on in an earlier run, are not
known here.
"""

import logging
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np

from agentpeft.envs import EpisodeOptions
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import drawn_kwargs

logger = logging.getLogger(__name__)
SEEN_FILE = "seen_tasks.bin"
MAX_SEEN = 2**20
_WITHOUT_TASKS = {*EpisodeOptions.__annotations__, "prompt", "split"}
"""Arguments of environments that do not say what the tasks are, and what says which half."""


class SeenTasks:
    """The contents that training has learnt from, by their hashes.

    The first `max_tasks` are known, so that memory is bounded: 8 bytes each in a checkpoint, some
    64 in memory.
    """

    def __init__(self, max_tasks: int = MAX_SEEN) -> None:
        self._hashes: set[int] = set()
        self._max_tasks = max_tasks

    def __len__(self) -> int:
        """Returns how many are known."""
        return len(self._hashes)

    def add(self, hashes: Iterable[int]) -> None:
        """Takes tasks in; beyond the limit, no new ones."""
        for value in hashes:
            if len(self._hashes) < self._max_tasks:
                self._hashes.add(value)

    def count(self, hashes: Iterable[int]) -> int:
        """Returns how many of these tasks are known."""
        return sum(value in self._hashes for value in hashes)

    def to_bytes(self) -> bytes:
        """Returns what `of_bytes` reads; equal sets give equal bytes."""
        return np.array(sorted(self._hashes), "<u8").tobytes()

    @classmethod
    def of_bytes(cls, content: bytes | None) -> "SeenTasks":
        """Returns the tasks of a checkpoint's file. Raises: CheckpointError where it has none."""
        if content is None:
            raise CheckpointError(f"the checkpoint has no {SEEN_FILE}: an older version wrote it")
        seen = cls()
        seen.add(np.frombuffer(content, "<u8").tolist())
        return seen


def warn_unless_held_out(settings: Settings) -> None:
    """Logs one line where evaluation draws from the tasks that training draws from."""
    if settings.evaluation.num_tasks > 0 and _is_shared(settings):
        logger.warning(
            "evaluation is not held out: it draws from the tasks that training draws from "
            "(eval/num_seen_tasks counts those that both had); where %s has splits, set "
            'environment.kwargs.split="train" and evaluation.env_kwargs.split="test"',
            settings.environment.id,
        )


def _is_shared(settings: Settings) -> bool:
    """Returns whether both have the same generator, and neither a half of its own.

    The sources of a mixture are looked at one by one.
    Tasks of files are not looked at: the same file is refused elsewhere.
    """
    evaluated = drawn_kwargs(settings.held_out_kwargs)
    trained = [own for stage in settings.stage_kwargs for own in drawn_kwargs(stage)]
    return any(_are_shared(own, held_out) for own, held_out in product(trained, evaluated))


def _are_shared(own: Mapping[str, Any], held_out: Mapping[str, Any]) -> bool:
    tasks, others = (
        {name: value for name, value in kwargs.items() if name not in _WITHOUT_TASKS}
        for kwargs in (own, held_out)
    )
    splits = [kwargs.get("split") for kwargs in (own, held_out)]
    is_divided = None not in splits and splits[0] != splits[1]
    return own.get("data") is None and tasks == others and not is_divided
