"""In-context methods that LoRA training is compared with: replayed successes, and votes.

Source: LifelongAgentBench (Zheng et al. 2025), experience replay and group self-consistency.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from agentpeft.envs import Outcome
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.wrapping import WrappingEngine
from agentpeft.policies.messages import Completion, EpisodeRecord, GenerationRequest, Ids
from agentpeft.policies.rollout.chat import ChatFormat, FoundAction


class ReplayChat(ChatFormat):
    """A chat that puts the last `num_examples` successes of each group before a prompt.

    Successes are dealt out to the groups in turn, and a prompt has one variant a group;
    `variants` has them by the ids of the first, which `begin` returns; `prompts` has the text
    without examples by the ids of each.
    """

    def __init__(self, chat: ChatFormat, num_examples: int, num_groups: int = 1) -> None:
        """`num_examples` 0 leaves prompts as they are."""
        self._chat, self.stop_token_ids = chat, chat.stop_token_ids
        self.variants: dict[bytes, tuple[Ids, ...]] = {}
        self.prompts: dict[bytes, str] = {}
        self._examples = [deque[str](maxlen=num_examples) for _ in range(num_groups)]
        self._num_seen = 0

    def add(self, records: Iterable[EpisodeRecord]) -> None:
        """Takes in episodes in their order; only successes are kept, without their thoughts."""
        first = 1 if self.system_prompt else 0
        for record in records:
            if record.outcome is Outcome.SUCCESS:
                text = "\n".join(self._retell(*message) for message in record.messages[first:])
                self._examples[self._num_seen % len(self._examples)].append(text)
                self._num_seen += 1

    def begin(self, prompt: str, system: str | None = None) -> Ids:
        """Returns the first tokens of the prompt after the first group's examples."""
        title, now = "Earlier tasks that were solved:", "The present task:"
        texts = (
            "\n\n".join([title, *examples, now, prompt] if examples else [prompt])
            for examples in self._examples
        )
        variants = tuple(self._chat.begin(text, system) for text in texts)
        self.variants[variants[0].tobytes()] = variants
        self.prompts |= {ids.tobytes(): prompt for ids in variants}
        return variants[0]

    def extend(self, ids: Ids, *observations: str) -> Ids:
        """Returns the tokens between `ids` and the next action."""
        return self._chat.extend(ids, *observations)

    def decode(self, sampled: Ids) -> str:
        """Returns what was said."""
        return self._chat.decode(sampled)

    def find_actions(self, said: str) -> list[FoundAction]:
        """Returns what the environment is told, in order."""
        return self._chat.find_actions(said)

    @property
    def system_prompt(self) -> str | None:
        """What stands before the prompt."""
        return self._chat.system_prompt

    def _retell(self, role: str, text: str) -> str:
        return f"{role}: {self._chat.strip_thoughts(text) if role == 'assistant' else text}"


class VotingEngine(WrappingEngine):
    """Asks an engine several times for each turn, and answers what most of them say.

    Each voter has its own variant of the prompt and its own seed, at `temperature`; then all go on
    from the chosen action. Of a tie the earliest voter's action is taken.
    """

    def __init__(
        self, engine: Engine, chat: ReplayChat, num_voters: int, temperature: float
    ) -> None:
        super().__init__(engine)
        self._chat, self._num_voters, self._temperature = chat, num_voters, temperature
        self._variants: dict[str, tuple[Ids, ...]] = {}

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Opens and closes the sessions of all voters."""
        for session in closed:
            self._variants.pop(session, None)
        self._engine.update_sessions(self._voters(opened), self._voters(closed))

    async def generate(self, request: GenerationRequest) -> Completion:
        """Returns the most frequent action of the voters. Raises: EngineError."""
        if request.session not in self._variants:
            self._variants[request.session] = self._chat.variants[request.prompt_ids.tobytes()]
        variants = self._variants[request.session]
        later = request.prompt_ids[len(variants[0]) :]
        requests = (
            replace(
                request,
                session=session,
                prompt_ids=np.concatenate([variants[voter % len(variants)], later]),
                seed=(*request.seed, voter),
                temperature=self._temperature,
                prefix=None,
            )
            for voter, session in enumerate(self._voters([request.session]))
        )
        votes = await asyncio.gather(*map(self._engine.generate, requests))
        said = (self._chat.decode(vote.token_ids) for vote in votes)
        actions = [self._chat.find_action(text).strip() for text in said]
        return votes[actions.index(Counter(actions).most_common(1)[0][0])]

    def _voters(self, sessions: Sequence[str]) -> list[str]:
        return [f"{name}#{voter}" for name in sessions for voter in range(self._num_voters)]
