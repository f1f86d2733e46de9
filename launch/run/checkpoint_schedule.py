"""After which iterations a run saves: every so many, or once in each epoch of its tasks."""

from contextlib import closing

from agentpeft.policies.rollout.chat_rows import read_chats
from agentpeft.policies.rollout.environments import count_epoch_tasks, open_stages
from agentpeft.policies.settings.config import Settings


class CheckpointSchedule:
    """What `output.checkpoint_interval` says."""

    def __init__(self, settings: Settings, position: int) -> None:
        """`position` is the run's in the stream of its tasks.

        Raises: SettingsError where "epoch" is asked for and the tasks have no end.
        """
        self._interval, self._position = settings.output.checkpoint_interval, position
        self._num_tasks = 0
        if self._interval == "epoch" and settings.training.chats:
            self._num_tasks = len(read_chats(settings.training.chats))
        elif self._interval == "epoch":
            (stage,) = open_stages(settings)
            with closing(stage):
                self._num_tasks = count_epoch_tasks(settings, stage)

    def is_due(self, iteration: int, position: int) -> bool:
        """Whether to save after an iteration, which has moved the run to `position`."""
        before, self._position = self._position, position
        if self._interval == "epoch":
            return position // self._num_tasks > before // self._num_tasks
        return self._interval > 0 and iteration % self._interval == 0
