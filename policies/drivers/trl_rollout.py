"""`TrlRollout`: whole episodes for TRL's `GRPOTrainer`, token by token, as its `rollout_func`.

Read with TRL 1.16, which passes prompts alone, each as often as it wants completions of it. For one
process and models that `generate` serves; not for DeepSpeed, FSDP or TRL's vLLM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from agentpeft.envs import Outcome
from agentpeft.policies.learning.scoring import token_logprobs
from agentpeft.policies.messages import Completion, Floats, Ids, StopReason
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.env_pool import EnvPool, outcome_of, reward_for, step
from agentpeft.policies.rollout.environment_calls import Env
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.settings.config import ModelSettings


@dataclass(frozen=True)
class _Seat:
    env: Env
    episode: EpisodeBuilder
    num_prompt_tokens: int


class TrlRollout:
    """Plays a row's task with the trainer's model, a batch of episodes at once.

    `env_mask` is 1 on sampled tokens only; what was sampled is trained on, never re-tokenised.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: dict[str, Any] | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase,
        max_new_tokens: int,
        seed: int = 0,
        model: ModelSettings | None = None,
    ) -> None:
        """`max_new_tokens` is a turn's limit, `max_completion_length` the episode's.

        `model` says how the model reads and writes: its system prompt, its template's variables.
        Raises: SettingsError.
        """
        self._pool = EnvPool(env_id, kwargs or {}, (seed,))
        self._chat = ChatFormat(tokenizer, model or ModelSettings())
        self._max_new_tokens = max_new_tokens

    def __call__(
        self, prompts: Sequence[Sequence[dict[str, Any]]], trainer: Any
    ) -> dict[str, list[Any]]:
        """Plays an episode for each of `make_rows`'s prompts. Raises: EnvFault."""
        seats = [self._begin(int(prompt[-1]["position"])) for prompt in prompts]
        while going := [s for s in seats if s.episode.outcome is Outcome.ONGOING]:
            completions = self._generate(trainer, [seat.episode.context for seat in going])
            for seat, completion in zip(going, completions, strict=True):
                self._act(seat, completion, trainer.max_completion_length)
        for seat in seats:
            self._pool.give_back(seat.env)
        played = [seat.episode.to_trajectory() for seat in seats]
        return {
            "prompt_ids": [t.prompt_ids.tolist() for t in played],
            "completion_ids": [t.token_ids.tolist() for t in played],
            "logprobs": [t.sampling_logprobs.tolist() for t in played],
            "env_mask": [t.loss_mask.astype(int).tolist() for t in played],
            "episode_return": [t.episode_return for t in played],
        }

    def _begin(self, position: int) -> _Seat:
        env, prompt = self._pool.begin(position, self._pool.task_at(position))
        prompt_ids = self._chat.begin(prompt)
        episode = EpisodeBuilder(prompt, prompt_ids, self._chat.system_prompt)
        return _Seat(env, episode, len(prompt_ids))

    def _act(self, seat: _Seat, completion: Completion, max_tokens: int) -> None:
        episode, said = seat.episode, self._chat.decode(completion.token_ids)
        episode.add_turn(completion, said)
        result = step(seat.env, self._chat.find_action(said))
        episode.add_reward(result.reward)
        if result.terminated or result.truncated:
            episode.outcome = outcome_of(result)
            return
        episode.add_observation(self._chat.extend(episode.context, result.observation))
        if len(episode.context) - seat.num_prompt_tokens + self._max_new_tokens > max_tokens:
            episode.outcome = Outcome.CONTEXT_LIMIT
            episode.add_reward(reward_for(seat.env, Outcome.CONTEXT_LIMIT))

    @torch.no_grad()
    def _generate(self, trainer: Any, contexts: Sequence[Ids]) -> list[Completion]:
        """Returns a completion of each context, all of one batch that is padded on the left."""
        model, tokenizer = trainer.model, self._chat.tokenizer
        inputs = {"input_ids": [ids.tolist() for ids in contexts]}
        padded = tokenizer.pad(inputs, padding_side="left", return_tensors="pt").to(model.device)
        was_training = model.training
        model.train(False)  # so that there is no gradient checkpointing, which forbids a cache
        made = model.generate(
            **padded,
            do_sample=True,
            temperature=trainer.temperature,
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.0,
            max_new_tokens=min(self._max_new_tokens, trainer.max_completion_length),
            eos_token_id=sorted(self._chat.stop_token_ids),
            pad_token_id=tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_scores=True,
        )
        model.train(was_training)
        ids = made.sequences[:, -len(made.scores) :]
        logits = torch.stack(made.scores, dim=1).float().flatten(0, 1)
        positions = torch.arange(len(logits), device=logits.device)
        logprobs = token_logprobs(logits, positions, ids.flatten()).view_as(ids)
        rows = zip(ids.cpu().numpy(), logprobs.cpu().numpy(), strict=True)
        return [self._cut(row, values) for row, values in rows]

    def _cut(self, ids: Ids, logprobs: Floats) -> Completion:
        """Returns what was sampled up to its stop token; padding follows it."""
        stops = np.flatnonzero(np.isin(ids, list(self._chat.stop_token_ids)))
        end = int(stops[0]) + 1 if len(stops) else len(ids)
        reason = StopReason.STOP_TOKEN if len(stops) else StopReason.MAX_NEW_TOKENS
        return Completion(ids[:end], logprobs[:end], reason, adapter_version=0)


def episode_return(episode_return: list[float], **_: object) -> list[float]:
    """Returns what the environment gave: the reward function to pass beside a `TrlRollout`."""
    return episode_return
