"""Episodes under way, token by token."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from agentpeft.envs import Outcome
from agentpeft.policies.messages import Completion, Floats, Ids, Mask, StopReason, Trajectory
from agentpeft.policies.rollout.chat import ChatFormat, FoundAction
from agentpeft.policies.rollout.environments import Env
from agentpeft.policies.rollout.play import StepResult, reward_for


class EpisodeBuilder:
    """An episode so far: a prompt, sampled turns, and what the environment said between them.

    `context` is all that the next turn is sampled after, (T,): it is only ever appended to. An
    agent that is not our own loop may have further conversations in its episode (`branches`).
    """

    def __init__(self, prompt: str, prompt_ids: Ids, chat: ChatFormat) -> None:
        """`prompt_ids` are the tokens of `prompt`: equal prompts of a group share them."""
        self.context = self._prompt_ids = prompt_ids
        self.outcome = Outcome.ONGOING
        self.episode_return = 0.0
        self.messages = [("system", chat.system_prompt)] if chat.system_prompt else []
        self.messages.append(("user", prompt))
        self.branches: list[EpisodeBuilder] = []
        self.first_turn = 0  # its number in the episode
        self.chat = chat
        self._logprobs: list[Floats] = []
        self._masks: list[Mask] = []
        self._versions: list[Ids] = []
        self._turn_ends: list[int] = []
        self._rewards: list[float] = []

    @property
    def num_turns(self) -> int:
        """Turns in which something was sampled, in its branches too."""
        return len(self._turn_ends) + sum(branch.num_turns for branch in self.branches)

    @property
    def num_sampled_tokens(self) -> int:
        """Sampled tokens, stop tokens included, in its branches too."""
        in_branches = sum(branch.num_sampled_tokens for branch in self.branches)
        return int(sum(mask.sum() for mask in self._masks)) + in_branches

    def add_turn(self, completion: Completion, said: str) -> None:
        """Appends what was sampled, and its whole text."""
        ids, versions = completion.token_ids, completion.token_versions
        same = np.full(len(ids), completion.adapter_version)
        self._append(ids, completion.logprobs, same if versions is None else versions)
        self._turn_ends.append(len(self.context) - len(self._prompt_ids))
        # A program may act, and be rewarded, before it asks for anything
        self._rewards.append(0.0 if self._rewards else self.episode_return)
        self.messages.append(("assistant", said))

    def add_reward(self, reward: float) -> None:
        """Adds to the reward of the last turn; before the first turn, to that of the first."""
        self.episode_return += reward
        if self._rewards:
            self._rewards[-1] += reward

    def add_answers(self, answers: Sequence[str], is_last: bool) -> None:
        """Appends the answers to all actions of the last turn, and where the next turn begins."""
        self.messages.append(("user", "\n".join(answers)))
        if not is_last:
            ids = self.chat.extend(self.context, *answers)
            self._append(ids, np.zeros(len(ids), np.float32))

    def end(self, env: Env, outcome: Outcome | None) -> None:
        """Sets the outcome; None: there was no room for another turn.

        The environment was not told of that, so its reward for it is added here. Raises: as
        `reward_for`.
        """
        self.outcome = outcome or Outcome.CONTEXT_LIMIT
        if outcome is None:
            self.add_reward(reward_for(env, self.outcome))

    def to_trajectories(self, adapter_version: int) -> list[Trajectory]:
        """Returns it and its branches where something was sampled, each with the return."""
        for branch in self.branches:
            branch.outcome = self.outcome
            branch._rewards = [*(0.0 for _ in branch._turn_ends[1:]), self.episode_return]
        played = [b for b in (self, *self.branches) if b._turn_ends] or [self]
        first, *others = (builder.to_trajectory(adapter_version) for builder in played)
        return [first, *(replace(trajectory, is_branch=True) for trajectory in others)]

    def to_trajectory(self, adapter_version: int | None = None) -> Trajectory:
        """Returns the episode up to its last sampled token, of a group of `adapter_version`."""
        first, end = len(self._prompt_ids), max(self._turn_ends, default=0)
        loss_mask = np.concatenate([np.empty(0, np.bool_), *self._masks])[:end]
        versions = np.concatenate([np.empty(0, np.int64), *self._versions])[:end]
        logprobs = np.concatenate([np.empty(0, np.float32), *self._logprobs])[:end]
        is_of_group = adapter_version is None or (versions[loss_mask] == adapter_version).all()
        return Trajectory(
            prompt_ids=self._prompt_ids,
            token_ids=self.context[first : first + end],
            loss_mask=loss_mask,
            sampling_logprobs=logprobs,
            turn_ends=tuple(self._turn_ends),
            turn_rewards=tuple(self._rewards),
            outcome=self.outcome,
            token_versions=None if is_of_group else versions,
        )

    def _append(self, ids: Ids, logprobs: Floats, versions: Ids | None = None) -> None:
        """Appends tokens; `versions` of the adapters that sampled them, None: nobody did."""
        self.context = np.concatenate([self.context, ids])
        self._logprobs.append(logprobs)
        self._masks.append(np.full(len(ids), versions is not None))
        self._versions.append(np.zeros(len(ids), np.int64) if versions is None else versions)


class EngineAgent:
    """An engine at play: its completions become turns, and their texts without thoughts actions.

    A turn of several tool calls has as many actions; the next one is sampled once all are answered.
    """

    def __init__(
        self,
        episode: EpisodeBuilder,
        chat: ChatFormat,
        complete: Callable[[EpisodeBuilder], Awaitable[Completion]],
    ) -> None:
        """`complete` samples the next turn after the episode's context."""
        self._episode, self._chat, self._complete = episode, chat, complete
        self._actions: deque[FoundAction] = deque()
        self._answers: list[str] = []

    async def act(self) -> str | None:
        """Returns the turn's next action, or that of a new turn; None where the context is full."""
        if self._actions:
            return self._actions[0].text
        completion = await self._complete(self._episode)
        said = self._chat.decode(completion.token_ids)
        if len(completion.token_ids):
            self._episode.add_turn(completion, said)
        if completion.stop_reason is StopReason.CONTEXT_FULL:
            return None
        self._actions.extend(self._chat.find_actions(said))
        return self._actions[0].text

    def receive(self, result: StepResult) -> None:
        """Adds the result to the episode."""
        self._episode.add_reward(result.reward)
        self._answers.append(self._actions.popleft().answer(result.observation))
        if result.is_last or not self._actions:
            self._episode.add_answers(self._answers, result.is_last)
            self._answers.clear()
