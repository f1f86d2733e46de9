"""`TokenEnv`: a text environment whose observations and actions are numbers, a token at a time.

For trainers that know no text. RLlib's is one (read with Ray 2.60): its runners take the batch of
two environments' texts apart by character, so that the first one observes all first letters.
"""

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from transformers import AutoConfig, AutoTokenizer

from agentpeft.envs import SettingsError
from agentpeft.policies.messages import Ids
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.environments import make_environment

NO_TOKEN = -1


class TokenEnv(gymnasium.Env[Ids, np.int64]):
    """An episode, token by token; a turn is over at a stop token, or at `max_new_tokens`.

    Observations are the conversation's ids, filled up with `NO_TOKEN`. The reward of a turn is that
    of its last token. A conversation that reaches `max_tokens` is truncated.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` has `game` (the suite's id), `model`, `max_tokens`, `max_new_tokens`, `kwargs`.

        Raises: SettingsError, ….
        """
        self._env = make_environment(config["game"], config.get("kwargs", {}))
        self._chat = ChatFormat(AutoTokenizer.from_pretrained(config["model"]))
        self._max_tokens, self._max_new_tokens = config["max_tokens"], config["max_new_tokens"]
        num_tokens = AutoConfig.from_pretrained(config["model"]).get_text_config().vocab_size
        shape = (self._max_tokens,)
        self.observation_space = gymnasium.spaces.Box(NO_TOKEN, num_tokens - 1, shape, np.int64)
        self.action_space = gymnasium.spaces.Discrete(num_tokens)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ids, dict[str, Any]]:
        """Returns the prompt's ids. Raises: SettingsError where they have no room, EnvFault."""
        super().reset(seed=seed)
        prompt, _ = self._env.reset(seed=seed, options=options)
        self._ids, self._turn = self._chat.begin(prompt), np.empty(0, np.int64)
        if len(self._ids) >= self._max_tokens:
            got = f"a prompt of {len(self._ids)} tokens"
            raise SettingsError(f"max_tokens must be more than {got}, got {self._max_tokens}")
        return self._observe(), {}

    def step(self, action: int | np.int64) -> tuple[Ids, float, bool, bool, dict[str, Any]]:
        """Says a token, and plays the turn where it is the last one. Raises: EnvFault."""
        self._ids, self._turn = np.append(self._ids, action), np.append(self._turn, action)
        reward: SupportsFloat = 0.0
        terminated = truncated = False
        if action in self._chat.stop_token_ids or len(self._turn) == self._max_new_tokens:
            said = self._chat.find_action(self._chat.decode(self._turn))
            observation, reward, terminated, truncated, _ = self._env.step(said)
            self._ids = np.append(self._ids, self._chat.extend(self._turn, observation))
            self._turn = self._turn[:0]
        is_full = len(self._ids) >= self._max_tokens
        truncated = truncated or (is_full and not terminated)
        return self._observe(), float(reward), terminated, truncated, {}

    def close(self) -> None:
        """Frees what the environment holds."""
        self._env.close()

    def _observe(self) -> Ids:
        ids = self._ids[: self._max_tokens]
        return np.pad(ids, (0, self._max_tokens - len(ids)), constant_values=NO_TOKEN)
