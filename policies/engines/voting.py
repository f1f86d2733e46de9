"""In-context methods that LoRA training is compared with: replayed successes, and votes."""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import numpy as np

from agentpeft.envs import Outcome
from agentpeft.policies.chat import Chat
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.samples import (
    AdapterAck,
    AdapterVersion,
    Completion,
    EpisodeRecord,
    GenerationRequest,
    Ids,
)

_TITLE = "Earlier tasks that were solved:"
_NOW = "The present task:"


class ReplayChat:
    """A chat that puts the last `num_examples` successes of each group before a prompt.

    With `num_groups` > 1 successes are dealt out in turn, and a prompt has one variant a group.
    Source: LifelongAgentBench (Zheng et al. 2025), experience replay and group self-consistency.
    """

    def __init__(self, chat: Chat, num_examples: int, num_groups: int = 1) -> None:
        """`num_examples` 0 leaves prompts as they are."""
        self._chat = chat
        self.stop_token_ids = chat.stop_token_ids
        self.begin_variants: dict[bytes, tuple[Ids, ...]] = {}
        """By a prompt's ids: those of all its variants, itself the first."""
        self._examples = [deque[str](maxlen=num_examples) for _ in range(num_groups)]
        self._num_seen = 0

    def add(self, records: Iterable[EpisodeRecord]) -> None:
        """Takes in episodes in their order; only successes are kept."""
        for record in records:
            if record.outcome is Outcome.SUCCESS:
                group = self._examples[self._num_seen % len(self._examples)]
                group.append("\n".join(f"{role}: {text}" for role, text in record.messages))
                self._num_seen += 1

    def begin(self, prompt: str) -> Ids:
        """Returns the first tokens of the prompt after the first group's examples."""
        variants = tuple(self._chat.begin(_join(group, prompt)) for group in self._examples)
        self.begin_variants[variants[0].tobytes()] = variants
        return variants[0]

    def extend(self, ids: Ids, observation: str) -> Ids:
        """Returns the tokens between `ids` and the next action."""
        return self._chat.extend(ids, observation)

    def decode(self, sampled: Ids) -> str:
        """Returns the action."""
        return self._chat.decode(sampled)


def _join(examples: Sequence[str] | deque[str], prompt: str) -> str:
    if not examples:
        return prompt
    return "\n\n".join([_TITLE, *examples, _NOW, prompt])


class VotingEngine:
    """Asks an engine several times for each turn, and answers what most of them say.

    Each voter has its own variant of the prompt and its own seed, at `temperature`; then all go on
    from the chosen action. Of a tie the earliest voter's action is taken.
    """

    def __init__(
        self, engine: Engine, chat: ReplayChat, num_voters: int, temperature: float
    ) -> None:
        self._engine, self._chat = engine, chat
        self._num_voters, self._temperature = num_voters, temperature
        self._variants: dict[str, tuple[Ids, ...]] = {}

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Opens and closes the sessions of all voters."""
        for session in closed:
            self._variants.pop(session, None)
        self._engine.update_sessions(self._voters(opened), self._voters(closed))

    async def generate(self, request: GenerationRequest) -> Completion:
        """Returns the most frequent action of the voters. Raises: EngineError."""
        variants = self._variants.get(request.session)
        if variants is None:
            variants = self._chat.begin_variants[request.prompt_ids.tobytes()]
            self._variants[request.session] = variants
        later = request.prompt_ids[len(variants[0]) :]
        votes = await asyncio.gather(
            *(
                self._engine.generate(
                    GenerationRequest(
                        session=session,
                        prompt_ids=np.concatenate([variants[voter % len(variants)], later]),
                        seed=(*request.seed, voter),
                        temperature=self._temperature,
                        max_new_tokens=request.max_new_tokens,
                    )
                )
                for voter, session in enumerate(self._voters([request.session]))
            )
        )
        actions = [self._chat.decode(vote.token_ids).strip() for vote in votes]
        return votes[actions.index(Counter(actions).most_common(1)[0][0])]

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Hands the adapter on."""
        return self._engine.load_adapter(adapter)

    def close(self) -> None:
        """Closes the engine."""
        self._engine.close()

    def _voters(self, sessions: Sequence[str]) -> list[str]:
        return [f"{name}#{voter}" for name in sessions for voter in range(self._num_voters)]
