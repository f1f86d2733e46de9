"""An environment whose oracle succeeds as often as a test wants, evaluation by evaluation."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import gymnasium
import numpy as np

from agentpeft.envs import EpisodeConfig, EpisodeOptions, Outcome, Task, TextEnv, Turn

NUM_TASKS = 4
"""Episodes of an evaluation."""


class CountedSource:
    """Tasks without number."""

    def draw(self, rng: np.random.Generator) -> Task:
        return self.get(f"task/{rng.integers(10**6)}")

    def get(self, task_id: str) -> Task:
        return Task(task_id=task_id, instruction="Say yes.")


class PeakingEnv(TextEnv[Task]):
    """A "yes" succeeds. With `is_evaluated` the oracle says it in `rates[n]` of evaluation n."""

    default_config = EpisodeConfig(max_turns=1)
    rates: ClassVar[Sequence[float]] = ()
    num_played: ClassVar[int] = 0

    def __init__(self, is_evaluated: bool = False, **options: Unpack[EpisodeOptions]) -> None:
        super().__init__(CountedSource(), options)
        self.is_evaluated = is_evaluated

    def _begin(self, task: Task) -> str:
        return task.instruction

    def _act(self, action: str) -> Turn:
        return Turn("Over.", Outcome.SUCCESS if action == "yes" else Outcome.FAILURE)

    def oracle_actions(self, task: Task) -> Sequence[str]:
        if not self.is_evaluated:
            return ["yes"]
        evaluation, episode = divmod(PeakingEnv.num_played, NUM_TASKS)
        PeakingEnv.num_played += 1
        return ["yes" if episode < NUM_TASKS * self.rates[evaluation] else "no"]


gymnasium.register("Tests/Peaking-v0", PeakingEnv)
