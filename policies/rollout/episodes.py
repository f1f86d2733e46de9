"""Episodes under way, token by token, and what is asked of and told by an env runner."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from agentpeft.envs import Outcome, Task
from agentpeft.policies.messages import (
    Completion,
    EpisodeGroup,
    EpisodeRecord,
    Floats,
    Ids,
    Mask,
    StopReason,
    Trajectory,
)
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.environment_calls import Env
from agentpeft.policies.rollout.play import StepResult, reward_for

Mode: TypeAlias = Literal["train", "eval"]


@dataclass(frozen=True)
class GroupRequest:
    """`num_episodes` episodes of the task at position `group_id` of the mode's task stream.

    Single episodes of mode "eval" are greedy; others have the settings' temperature. `stage` is the
    stage of training whose stream it is, see `stages`.
    """

    group_id: int
    num_episodes: int
    mode: Mode = "train"
    stage: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely tokens are wanted."""
        return self.mode == "eval" and self.num_episodes == 1


@dataclass(frozen=True)
class SampleReport:
    """What was played: records, adapter versions and hashes (by group id) of whole groups; counts.

    `dropped_group_ids` are left out everywhere else, and so are `num_slow_episodes` episodes, for
    whose turns the engine took too long. `task_hashes` are of the tasks' content. `num_cut_turns`
    ended at `max_new_tokens`, mostly unfinished. `last_fault` says which environment, task and turn
    one of the faults had, and what it was; empty without faults. `engine_s` and `env_s` are the
    seconds in which at least one request, or call of an environment, was under way.
    """

    records: tuple[EpisodeRecord, ...]
    adapter_versions: tuple[int, ...]
    task_hashes: Mapping[int, int]
    dropped_group_ids: tuple[int, ...]
    num_faults: int
    last_fault: str
    num_retries: int
    num_slow_episodes: int
    num_cut_turns: int
    num_sampled_tokens: int
    total_s: float
    engine_s: float
    env_s: float

    @classmethod
    def merge(
        cls, reports: "Iterable[SampleReport]", *, is_in_turn: bool = False
    ) -> "SampleReport":
        """Returns the report of runners that played side by side; seconds are the slowest's.

        `is_in_turn`: one report's episodes came after the other's, so that seconds add up.
        """
        parts = list(reports)
        combine = sum if is_in_turn else partial(max, default=0.0)
        records = sorted(
            (record for part in parts for record in part.records),
            key=lambda record: (record.group_id, record.sample),
        )
        return cls(
            records=tuple(records),
            adapter_versions=tuple(v for part in parts for v in part.adapter_versions),
            task_hashes={i: value for part in parts for i, value in part.task_hashes.items()},
            dropped_group_ids=tuple(i for part in parts for i in part.dropped_group_ids),
            num_faults=sum(part.num_faults for part in parts),
            last_fault=next((part.last_fault for part in parts if part.last_fault), ""),
            num_retries=sum(part.num_retries for part in parts),
            num_slow_episodes=sum(part.num_slow_episodes for part in parts),
            num_cut_turns=sum(part.num_cut_turns for part in parts),
            num_sampled_tokens=sum(part.num_sampled_tokens for part in parts),
            total_s=combine(part.total_s for part in parts),
            engine_s=combine(part.engine_s for part in parts),
            env_s=combine(part.env_s for part in parts),
        )

    def metrics(self) -> dict[str, float]:
        """Returns the counts, and the numbers of episodes by outcome."""
        counts = Counter(record.outcome.value for record in self.records)
        return {
            "num_episodes": float(len(self.records)),
            "num_faults": float(self.num_faults),
            "num_retries": float(self.num_retries),
            "num_slow_episodes": float(self.num_slow_episodes),
            "num_cut_turns": float(self.num_cut_turns),
            "num_dropped_groups": float(len(self.dropped_group_ids)),
            "num_sampled_tokens": float(self.num_sampled_tokens),
            **{f"outcome/{name}": float(number) for name, number in sorted(counts.items())},
        }


class EpisodeBuilder:
    """An episode so far: a prompt, sampled turns, and what the environment said between them.

    `context` is all that the next turn is sampled after, (T,): it is only ever appended to.
    """

    def __init__(self, prompt: str, prompt_ids: Ids, chat: ChatFormat) -> None:
        """`prompt_ids` are the tokens of `prompt`: equal prompts of a group share them."""
        self.context = self._prompt_ids = prompt_ids
        self.outcome = Outcome.ONGOING
        self.episode_return = 0.0
        self.messages = [("system", chat.system_prompt)] if chat.system_prompt else []
        self.messages.append(("user", prompt))
        self._chat = chat
        self._logprobs: list[Floats] = []
        self._masks: list[Mask] = []
        self._turn_ends: list[int] = []
        self._rewards: list[float] = []

    @property
    def num_turns(self) -> int:
        """Turns in which something was sampled."""
        return len(self._turn_ends)

    @property
    def num_sampled_tokens(self) -> int:
        """Sampled tokens, stop tokens included."""
        return int(sum(mask.sum() for mask in self._masks))

    def add_turn(self, completion: Completion, said: str) -> None:
        """Appends what was sampled, and its whole text."""
        self._append(completion.token_ids, completion.logprobs, is_sampled=True)
        self._turn_ends.append(len(self.context) - len(self._prompt_ids))
        self.messages.append(("assistant", said))

    def add_reward(self, reward: float) -> None:
        """Adds to the reward of the last turn; without turns it is in the return alone."""
        self.episode_return += reward
        self._rewards += [0.0] * (self.num_turns - len(self._rewards))
        if self._rewards:
            self._rewards[-1] += reward

    def add_result(self, result: StepResult) -> None:
        """Adds what the last turn has led to; unless it was the last, the next turn's beginning."""
        self.add_reward(result.reward)
        self.messages.append(("user", result.observation))
        if not result.is_last:
            ids = self._chat.extend(self.context, result.observation)
            self._append(ids, np.zeros(len(ids), np.float32), is_sampled=False)

    def end(self, env: Env, outcome: Outcome | None) -> None:
        """Settles the outcome: None is that there was no room for another turn.

        The environment was not told of that, so its reward for it is added here. Raises: EnvFault.
        """
        self.outcome = outcome or Outcome.CONTEXT_LIMIT
        if outcome is None:
            self.add_reward(reward_for(env, self.outcome))

    def to_trajectory(self) -> Trajectory:
        """Returns the episode up to its last sampled token."""
        first = len(self._prompt_ids)
        num_tokens = self._turn_ends[-1] if self._turn_ends else 0
        return Trajectory(
            prompt_ids=self._prompt_ids,
            token_ids=self.context[first : first + num_tokens],
            loss_mask=np.concatenate([np.empty(0, np.bool_), *self._masks])[:num_tokens],
            sampling_logprobs=np.concatenate([np.empty(0, np.float32), *self._logprobs])[
                :num_tokens
            ],
            turn_ends=tuple(self._turn_ends),
            turn_rewards=tuple(self._rewards),
            outcome=self.outcome,
        )

    def _append(self, ids: Ids, logprobs: Floats, is_sampled: bool) -> None:
        self.context = np.concatenate([self.context, ids])
        self._logprobs.append(logprobs)
        self._masks.append(np.full(len(ids), is_sampled))


class EngineAgent:
    """An engine at play: its completions become turns, and their texts without thoughts actions."""

    def __init__(
        self,
        episode: EpisodeBuilder,
        chat: ChatFormat,
        complete: Callable[[EpisodeBuilder], Awaitable[Completion]],
    ) -> None:
        """`complete` samples the next turn after the episode's context."""
        self._episode, self._chat, self._complete = episode, chat, complete

    async def act(self) -> str | None:
        """Samples a turn and returns its action; None where the context is full."""
        completion = await self._complete(self._episode)
        said = self._chat.decode(completion.token_ids)
        if len(completion.token_ids):
            self._episode.add_turn(completion, said)
        if completion.stop_reason is StopReason.CONTEXT_FULL:
            return None
        return self._chat.find_action(said)

    def receive(self, result: StepResult) -> None:
        """Adds the result to the episode."""
        self._episode.add_result(result)


@dataclass(eq=False)
class OpenGroup:
    """A group in play: its prompt once it is known, and its finished episodes by sample."""

    request: GroupRequest
    task: Task
    episodes: dict[int, EpisodeBuilder] = field(default_factory=dict)
    prompt: str | None = None
    prompt_ids: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    is_dropped: bool = False

    @property
    def name(self) -> str:
        """A name that sorts by position."""
        return f"{self.request.mode}-{self.request.group_id:09d}"

    def begin(self, prompt: str, chat: ChatFormat) -> EpisodeBuilder:
        """Returns a new episode; the tokens of a prompt that the group shares are made once."""
        if self.prompt is None:
            self.prompt, self.prompt_ids = prompt, chat.begin(prompt)
        prompt_ids = self.prompt_ids if prompt == self.prompt else chat.begin(prompt)
        return EpisodeBuilder(prompt, prompt_ids, chat)

    def to_group(self, adapter_version: int) -> EpisodeGroup:
        """Returns the group's episodes for learning.

        One whose prompt left no room for a token says nothing, and would shift the others' mean.
        """
        played = [e for _, e in sorted(self.episodes.items())]
        played = [e for e in played if e.num_turns] or played
        return EpisodeGroup(
            group_id=self.request.group_id,
            task_id=self.task.task_id,
            skills=self.task.skills,
            adapter_version=adapter_version,
            trajectories=tuple(e.to_trajectory() for e in played),
        )

    def to_records(self, adapter_version: int, has_messages: bool) -> Iterator[EpisodeRecord]:
        """Yields the group's episodes in words."""
        for sample, episode in sorted(self.episodes.items()):
            yield EpisodeRecord(
                group_id=self.request.group_id,
                sample=sample,
                task_id=self.task.task_id,
                skills=self.task.skills,
                adapter_version=adapter_version,
                outcome=episode.outcome,
                episode_return=episode.episode_return,
                num_turns=episode.num_turns,
                num_tokens=episode.num_sampled_tokens,
                messages=tuple(episode.messages) if has_messages else (),
            )


@dataclass(frozen=True)
class Seat:
    """One episode of a group that is to be played."""

    group: OpenGroup
    sample: int

    @property
    def session(self) -> str:
        """The episode's name for the engine."""
        return f"{self.group.name}-{self.sample:04d}"
