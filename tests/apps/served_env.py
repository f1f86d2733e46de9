"""An environment that does to its server what an action says; registered as Served/Toy-v0."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack
from uuid import uuid4

import gymnasium
import numpy as np

from agentpeft.envs import EnvFault, EpisodeConfig, EpisodeOptions, Outcome, Task, TextEnv, Turn
from agentpeft.envs.core.errors import UnknownTaskError


class ToySource:
    """Tasks toy/0 to toy/9."""

    def draw(self, rng: np.random.Generator) -> Task:
        return self.get(f"toy/{rng.integers(10)}")

    def get(self, task_id: str) -> Task:
        if task_id[:-1] != "toy/":
            raise UnknownTaskError(f"no task {task_id!r}")
        return Task(task_id=task_id, instruction="Do as you like.", skills=("any",))


class ToyEnv(TextEnv[Task]):
    """Holds a file in `folder` from its first episode to its end, as others hold a sandbox.

    The file has the last action, also while it is done.
    """

    default_config = EpisodeConfig(max_turns=1000, invalid_ends=False)

    def __init__(self, folder: str, **options: Unpack[EpisodeOptions]) -> None:
        super().__init__(ToySource(), options)
        self._file = Path(folder) / uuid4().hex

    def _begin(self, task: Task) -> str:
        self._file.touch()
        return f"{task.instruction} You have {self.config.max_turns} turns."

    def _act(self, action: str) -> Turn:
        self._file.write_text(action, "utf-8", "replace")  # what it does now
        word, _, number = action.partition(" ")
        if word == "sleep":
            time.sleep(float(number))
        elif word == "big":
            return Turn("x" * int(number))
        elif word == "fault":
            raise EnvFault("the toy is broken")
        elif word == "bug":
            raise ZeroDivisionError("the toy's author has slept")
        elif word == "win":
            return Turn("Won.", Outcome.SUCCESS)
        elif word == "nonsense":
            return Turn("What?", Outcome.INVALID_ACTION)
        return Turn(f"You said {action}.")

    def oracle_actions(self, task: Task) -> Sequence[str]:
        del task
        return ["win"]

    def _release(self) -> None:
        self._file.unlink(missing_ok=True)


gymnasium.register("Served/Toy-v0", ToyEnv)
