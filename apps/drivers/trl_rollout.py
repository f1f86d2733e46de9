"""`TrlRollout`: whole episodes for TRL's `GRPOTrainer`, token by token, as its `rollout_func`.

Read with TRL 1.16, which passes prompts alone, each as often as it wants completions of it. For one
process and models that `generate` serves; not for DeepSpeed, FSDP or TRL's vLLM.
"""

from collections.abc import Coroutine, Generator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from agentpeft.envs import SettingsError
from agentpeft.policies.messages import Completion, Floats, Ids, StopReason
from agentpeft.policies.models.scoring import token_logprobs
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.environments import Env, EnvPool
from agentpeft.policies.rollout.episodes import EngineAgent, EpisodeBuilder
from agentpeft.policies.rollout.play import play_episode
from agentpeft.policies.settings.config import ModelSettings


class _NextCompletion:
    """Awaited, it is what the coroutine is sent next: a completion of its episode's context."""

    def __await__(self) -> Generator[None, Completion, Completion]:
        return (yield)


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
        if model is not None and model.tool_calls:
            raise SettingsError("model.tool_calls: TRL's own tool calls are TrlEnvironment's")
        self._pool = EnvPool(env_id, kwargs or {}, (seed,))
        self._chat = ChatFormat(tokenizer, model or ModelSettings())
        self._max_new_tokens = max_new_tokens

    def __call__(
        self, prompts: Sequence[Sequence[dict[str, Any]]], trainer: Any
    ) -> dict[str, list[Any]]:
        """Plays an episode for each of `make_rows`'s prompts. Raises: EnvFault."""
        episodes: list[EpisodeBuilder] = []
        going: dict[Coroutine[None, Any, None], EpisodeBuilder] = {}
        for prompt in prompts:
            position = int(prompt[-1]["position"])
            env, text = self._pool.begin(position, self._pool.task_at(position))
            episode = EpisodeBuilder(text, self._chat.begin(text), self._chat)
            episodes.append(episode)
            going[self._play(env, episode, trainer.max_completion_length)] = episode
        # Each runs until it wants a completion; then those of all are one batch of the model. No
        # event loop does this, since a notebook has one of its own running.
        for play in going:
            play.send(None)
        while going:
            completions = self._generate(trainer, [each.context for each in going.values()])
            for play, completion in zip(tuple(going), completions, strict=True):
                try:
                    play.send(completion)
                except StopIteration:
                    del going[play]
        played = [episode.to_trajectory() for episode in episodes]
        return {
            "prompt_ids": [t.prompt_ids.tolist() for t in played],
            "completion_ids": [t.token_ids.tolist() for t in played],
            "logprobs": [t.sampling_logprobs.tolist() for t in played],
            "env_mask": [t.loss_mask.astype(int).tolist() for t in played],
            "episode_return": [t.episode_return for t in played],
        }

    async def _play(self, env: Env, episode: EpisodeBuilder, max_tokens: int) -> None:
        """Plays an episode of at most `max_tokens` after its prompt, then gives `env` back."""
        num_prompt_tokens = len(episode.context)

        async def complete(episode: EpisodeBuilder) -> Completion:
            num_tokens = len(episode.context) - num_prompt_tokens
            if episode.num_turns and num_tokens + self._max_new_tokens > max_tokens:
                nothing = np.empty(0, np.int64), np.empty(0, np.float32)
                return Completion(*nothing, StopReason.CONTEXT_FULL, adapter_version=0)
            return await _NextCompletion()

        agent = EngineAgent(episode, self._chat, complete)
        episode.end(env, await play_episode(env, agent))
        self._pool.give_back(env)

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
