"""`GemEnv`: an environment of the suite as one of GEM's, read with `gem-llm` 0.1."""

from typing import Any

import gem

from agentpeft.envs import SettingsError
from agentpeft.policies.rollout.environments.environment_calls import make_environment
from agentpeft.policies.rollout.thoughts import find_action


class GemEnv(gem.Env):  # type: ignore[misc]
    """For `gem.register`; the suite's `info` stays here, where no wrapper shows it to a model."""

    def __init__(self, game: str, **kwargs: Any) -> None:
        """`game` is the suite's id (GEM calls its own `env_id`). Raises: SettingsError, …."""
        super().__init__()
        self._game, self._kwargs = game, kwargs
        self._env = make_environment(game, kwargs)

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Returns the prompt. Raises: EnvFault."""
        super().reset(seed)
        return self._env.reset(seed=seed)[0], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays what the model says, without its thoughts. Raises: EnvFault."""
        observation, reward, terminated, truncated, _ = self._env.step(find_action(action))
        return observation, float(reward), terminated, truncated, {}

    def spawn(self, same_state: bool = False, **kwargs: Any) -> "GemEnv":
        """Returns another environment with these settings, to be reset. Raises: SettingsError."""
        if same_state:
            raise SettingsError("same_state must be False, got True: no episode can be copied")
        return GemEnv(self._game, **{**self._kwargs, **kwargs})

    def close(self) -> None:
        """Frees what the environment holds."""
        self._env.close()
