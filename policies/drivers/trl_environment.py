"""`TrlEnvironment`: an environment that TRL's `GRPOTrainer` plays by tool calls.

Read with TRL 1.16. The trainer renders and parses the calls, so the model's chat template must be
one of those whose tool calls TRL knows. It is also TRL that takes the turns, one `act` at a time,
and not `play_episode`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agentpeft.envs import EnvFault, Outcome, SettingsError, Task, from_rows, to_rows
from agentpeft.envs.tasks.task_rows import is_task_row
from agentpeft.policies.rollout.env_pool import EnvPool
from agentpeft.policies.rollout.environment_calls import Env
from agentpeft.policies.rollout.play import reward_for

OVER = "The episode is over."


def make_rows(
    tasks: int | Iterable[Task], system_prompt: str | None = None
) -> list[dict[str, Any]]:
    """Returns a data set's rows: so many tasks by position, or these tasks, for `TrlEnvironment`.

    A position is in a column and in the message to fill, since TRL gives environments the columns,
    and a `rollout_func` the messages alone. `system_prompt` stands before that message; a
    `TrlRollout` has its own.
    """
    message = {"role": "user", "content": ""}
    before = [{"role": "system", "content": system_prompt}] if system_prompt else []
    if isinstance(tasks, int):
        positions = range(tasks)
        return [{"prompt": [*before, {**message, "position": i}], "position": i} for i in positions]
    return [{"prompt": [*before, message], **row} for row in to_rows(tasks)]


class TrlEnvironment:
    """One environment at a time, for `environment_factory`; its public methods are the tools.

    The task is a function of the row (and of the environment's seed, for a position), so that a
    group's episodes are of one task.
    """

    def __init__(self, env_id: str, kwargs: dict[str, Any] | None = None, seed: int = 0) -> None:
        """`kwargs` are the environment's settings. Raises: SettingsError."""
        self._pool = EnvPool(env_id, kwargs or {}, (seed,))
        self._env: Env | None = None
        self._return = 0.0
        self._fault: EnvFault | None = None
        self._next_position = 0
        self._is_over = True

    def reset(
        self,
        position: int | Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        task_id: str | None = None,
        **row: object,
    ) -> str:
        """Starts an episode and returns the prompt, which TRL appends to the row's message.

        The task is that of the columns of `to_rows`, of `task_id`, of `position`, or what is drawn
        with `seed`. Other columns are not looked at. A row with none of these stands for the next
        position, from 0 on, so that those who are reset together play one task. Instead of columns
        as arguments, a row may be the only one.

        Raises: SettingsError, DataError, UnknownTaskError, EnvFault.
        """
        if isinstance(position, Mapping):
            return self.reset(**position)
        if self._env is not None:
            self._pool.give_back(self._env)
            self._env = None
        self._return, self._fault, self._is_over = 0.0, None, True
        self._env, prompt = self._begin(position, seed, task_id, row)
        self._is_over = False
        return prompt

    def _begin(
        self,
        position: int | None,
        seed: int | None,
        task_id: str | None,
        row: Mapping[str, object],
    ) -> tuple[Env, str]:
        columns = {**row, "task_id": task_id}
        if is_task_row(columns):
            return self._pool.begin_with(seed, from_rows([columns])[0])
        if task_id is not None:
            return self._pool.begin_with(seed, task_id)
        if seed is None:
            if position is None:
                position = self._next_position
            self._next_position = position + 1
            return self._pool.begin(position, self._pool.task_at(position))
        if position is not None:
            raise SettingsError(f"a row has a position or a seed, got {position} and {seed}")
        return self._pool.begin_with(seed)

    def act(self, action: str) -> str:
        """Acts in the environment.

        Args:
            action: The whole text of the action, in the form that the task asks for.

        Returns:
            What the environment answers.
        """
        if self._is_over or self._env is None:
            return OVER
        try:
            observation, reward, terminated, truncated, _ = self._env.step(str(action))
        except EnvFault as fault:
            self._fault, self._env, self._is_over = fault, None, True
            raise
        self._return += float(reward)
        self._is_over = terminated or truncated
        return observation

    def get_reward(self) -> float:
        """Returns the episode's return; one that stopped without a call ends as an invalid action.

        Raises: EnvFault of an earlier call, since TRL would show it to the model and train on it.
        """
        if self._fault is not None:
            raise self._fault
        if self._env is None or self._is_over:
            return self._return
        return self._return + reward_for(self._env, Outcome.INVALID_ACTION)
