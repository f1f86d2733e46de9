"""`SwiftEnv`: an environment of the suite in ms-swift's GRPO, read with version 4.6.

Importing the module registers it, so that it is an `--external_plugins` of its own.
"""

from typing import Any

from swift.rewards import ORM, orms
from swift.rollout.gym_env import Env, envs

from agentpeft.policies.rollout.environments import EnvPool
from agentpeft.policies.thoughts import find_action


class SwiftEnv(Env):  # type: ignore[misc]
    """One episode of the task at a row's position, for `--gym_env agentpeft`.

    A row's `env_config` has `game` (the suite's id) and `position`, and may have `kwargs`, `seed`.
    """

    async def reset(self, config: Any) -> tuple[str, dict[str, Any], str]:
        """Returns the prompt, nothing else, and no system prompt. Raises: EnvFault, …."""
        del config
        row = self.env_config
        self._pool = EnvPool(row["game"], row.get("kwargs") or {}, (row.get("seed") or 0,))
        position = int(row["position"])
        self._env, prompt = self._pool.begin(position, self._pool.task_at(position))
        return prompt, {}, ""

    async def step(self, action: list[dict[str, Any]]) -> tuple[str, float, bool, dict[str, Any]]:
        """Plays the conversation's last message, without its thoughts. Raises: EnvFault."""
        said = find_action(action[-1]["content"])
        observation, reward, terminated, truncated, _ = self._env.step(said)
        return observation, float(reward), terminated or truncated, {}

    async def close(self) -> None:
        """Frees what the environment holds."""
        self._pool.give_back(self._env)
        self._pool.close()


class EpisodeReturn(ORM):  # type: ignore[misc]
    """What the episodes earned, for `--reward_funcs agentpeft`: without vLLM swift asks no env."""

    def __call__(
        self, completions: list[Any], rollout_infos: list[dict[str, Any]], **_: Any
    ) -> list[float]:
        """Returns a return for each completion."""
        del completions
        return [float(each["total_reward"]) for each in rollout_infos]


envs["agentpeft"] = SwiftEnv
orms["agentpeft"] = EpisodeReturn
