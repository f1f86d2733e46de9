"""`SkyRLEnv`: an environment of the suite as one of SkyRL-gym's, read with version 0.4."""

from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

from agentpeft.policies.rollout.environments.env_pool import EnvPool
from agentpeft.policies.rollout.thoughts import find_action


class SkyRLEnv(BaseTextEnv):  # type: ignore[misc]
    """One episode of the task at a row's position, for `skyrl_gym.register`."""

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        """`env_config` has `game` (the suite's id), and may have `kwargs` and `seed`.

        `extras` are the row's columns, among them `position`. Raises: SettingsError, ….
        """
        super().__init__()
        kwargs = dict(env_config.get("kwargs", {}))
        self._pool = EnvPool(env_config["game"], kwargs, (int(env_config.get("seed", 0)),))
        self._position = int(extras["position"])

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """Returns the row's messages, the last one the task's prompt. Raises: EnvFault."""
        task = self._pool.task_at(self._position)
        self._env, text = self._pool.begin(self._position, task)
        return [*prompt[:-1], {"role": "user", "content": text}], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Plays what the model says, without its thoughts. Raises: EnvFault."""
        observation, reward, terminated, truncated, _ = self._env.step(find_action(action))
        self.turns += 1
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": observation}],
            reward=float(reward),
            done=terminated or truncated,
            metadata={},
        )

    def close(self) -> None:
        """Frees what the environment holds."""
        if "_env" in vars(self):
            self._pool.give_back(self._env)
            del self._env
        self._pool.close()
