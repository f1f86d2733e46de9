"""A minimal text environment: echo the task's word, within three turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from agentpeft.envs import EnvFault, EpisodeConfig, EpisodeOptions, Outcome, Task, TextEnv, Turn
from agentpeft.envs.core.errors import UnknownTaskError


@dataclass(frozen=True, kw_only=True)
class EchoTask(Task):
    word: str


class EchoSource:
    """Tasks `echo/0` to `echo/N-1`; skills are the parity of the number."""

    def __init__(self, num_words: int = 100) -> None:
        self.num_words = num_words

    def draw(self, rng: np.random.Generator) -> EchoTask:
        return self.get(f"echo/{rng.integers(self.num_words)}")

    def get(self, task_id: str) -> EchoTask:
        number = task_id.removeprefix("echo/")
        if not number.isdigit() or int(number) >= self.num_words:
            raise UnknownTaskError(f"no task {task_id!r}")
        skills = ("even",) if int(number) % 2 == 0 else ("odd", "hard")
        return EchoTask(
            task_id=task_id, instruction=f"Say {number}.", skills=skills, word=f"word{number}"
        )


class EchoEnv(TextEnv[EchoTask]):
    """Say the word: success. Other actions name an outcome (`timeout`), a fault, or get a hint."""

    default_config = EpisodeConfig(max_turns=3)

    def __init__(self, num_words: int = 100, **options: Unpack[EpisodeOptions]) -> None:
        super().__init__(EchoSource(num_words), options)
        self.ended_with: list[Outcome] = []
        self.actions: list[str] = []

    def _begin(self, task: EchoTask) -> str:
        return f"Say '{task.word}' in at most {self.config.max_turns} turns."

    def _act(self, action: str) -> Turn:
        self.actions.append(action)
        if action == self.task.word:
            return Turn("Right.", Outcome.SUCCESS)
        if action == "fault":
            raise EnvFault("the echo service is gone")
        if action in set(Outcome):
            return Turn(f"As you wish: {action}.", Outcome(action))
        return Turn("Go on.", reward=0.25 if action == "please" else 0.0)

    def oracle_actions(self, task: EchoTask) -> Sequence[str]:
        return ["please", task.word]

    def _end(self, outcome: Outcome) -> None:
        self.ended_with.append(outcome)
