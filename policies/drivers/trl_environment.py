"""`TrlEnvironment`: an environment that TRL's `GRPOTrainer` plays by tool calls.

Read with TRL 1.16. The trainer renders and parses the calls, so the model's chat template must be
one of those whose tool calls TRL knows.
"""

from typing import Any

from agentpeft.envs import EnvFault, Outcome
from agentpeft.policies.env_pool import Env, EnvPool, reward_for

OVER = "The episode is over."


def make_rows(num_tasks: int) -> list[dict[str, Any]]:
    """Returns a data set's rows: tasks by position, in a column and in the message to fill.

    TRL gives environments the columns, and a `rollout_func` the messages alone.
    """
    message = {"role": "user", "content": ""}
    return [{"prompt": [{**message, "position": i}], "position": i} for i in range(num_tasks)]


class TrlEnvironment:
    """One environment at a time, for `environment_factory`; its public methods are the tools.

    The task is a function of seed and position, so that a group's episodes are of one task.
    """

    def __init__(self, env_id: str, kwargs: dict[str, Any] | None = None, seed: int = 0) -> None:
        """`kwargs` are the environment's settings. Raises: SettingsError."""
        self._pool = EnvPool(env_id, kwargs or {}, (seed,))
        self._env: Env | None = None
        self._return = 0.0
        self._fault: EnvFault | None = None

    def reset(self, position: int, **row: object) -> str:
        """Starts an episode and returns the prompt, which TRL appends to the row's message."""
        del row
        if self._env is not None:
            self._pool.give_back(self._env)
        self._return, self._fault, self._is_over = 0.0, None, False
        self._env, prompt = self._pool.begin(position, self._pool.task_at(position))
        return prompt

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
