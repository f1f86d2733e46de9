"""`ScriptedEngine`: an engine that says what it is given, for tests and an oracle's play."""

import sys
from collections.abc import Callable, Mapping, Sequence

from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.engines.protocol import Engine, limit_turn
from agentpeft.policies.engines.wrapping import say
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    GenerationRequest,
    StopReason,
)
from agentpeft.policies.rollout.chat import ChatFormat

Script = Mapping[str, Sequence[str]] | Callable[[str, int], str]


class ScriptedEngine(Engine):
    """Plays `script`: texts by session, or a function of the session and its turn (from 0).

    Each text is followed by the stop token; log-probabilities are 0. Limits hold as for a model:
    what is longer than `max_new_tokens`, or does not fit into the context, is cut.
    """

    def __init__(
        self, chat: ChatFormat, script: Script, max_context_tokens: int | None = None
    ) -> None:
        self._chat = chat
        self._script = script
        self._max_context_tokens = max_context_tokens
        self._turns: dict[str, int] = {}
        self._version = 0

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Begins and forgets scripts."""
        for session in closed:
            self._turns.pop(session, None)
        self._turns.update(dict.fromkeys(opened, 0))

    async def generate(self, request: GenerationRequest) -> Completion:
        """Says the session's next text. Raises: EngineError where there is none."""
        if request.session not in self._turns:
            raise EngineError(f"session {request.session!r} is not open")
        turn = self._turns[request.session]
        self._turns[request.session] += 1
        ids = self._chat.encode_action(self._find_text(request.session, turn))
        limit, reason = limit_turn(request, self._max_context_tokens or sys.maxsize)
        reason = reason if len(ids) > limit else StopReason.STOP_TOKEN
        return say(ids[:limit], reason, self._version)

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Takes the adapter's version for its own."""
        self._version = adapter.version
        return ack_of(adapter)

    def _find_text(self, session: str, turn: int) -> str:
        if not isinstance(self._script, Mapping):
            return self._script(session, turn)
        texts = self._script.get(session, ())
        if turn >= len(texts):
            raise EngineError(f"session {session!r} has {len(texts)} texts, asked for one more")
        return texts[turn]
