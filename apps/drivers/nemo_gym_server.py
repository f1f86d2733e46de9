"""`SuiteServer`: an environment of the suite as a NeMo Gym resources server, read with 0.4.

For its `gymnasium_agent`; NeMo Gym wants Python 3.12, its later versions 3.13.14.
"""

from typing import Any

from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.gymnasium import GymnasiumServer, extract_text

from agentpeft.policies.rollout.environments.env_pool import EnvPool
from agentpeft.policies.rollout.thoughts import find_action


class SuiteServer(GymnasiumServer):  # type: ignore[misc]
    """A session is an episode of the task at a row's position.

    A row has `game` (the suite's id) and `position`, and may have `kwargs` and `seed`.
    """

    async def reset(
        self, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Returns the prompt. Raises: EnvFault, SettingsError, …."""
        seed, position = int(metadata.get("seed", 0)), int(metadata["position"])
        pool = EnvPool(metadata["game"], metadata.get("kwargs", {}), (seed,))
        env, prompt = pool.begin(position, pool.task_at(position))
        self.session_state[session_id] = pool, env
        return prompt, {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays what the model says, without its thoughts. Raises: EnvFault."""
        del metadata
        _, env = self.session_state[session_id]
        said = find_action(extract_text(action))
        observation, reward, terminated, truncated, _ = env.step(said)
        return observation, float(reward), terminated, truncated, {}

    async def close_session(self, session_id: str | None) -> None:
        """Frees what the episode holds."""
        pool, env = self.session_state.pop(session_id)
        pool.give_back(env)
        pool.close()


if __name__ == "__main__":
    SuiteServer.run_webserver()
