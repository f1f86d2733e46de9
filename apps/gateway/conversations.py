"""The conversations that a program has in an episode, as tokens.

A request that continues one is sampled after exactly the tokens that were sampled before. Any other
is a branch of the episode: one that asks again at an earlier place has the tokens up to there, one
that changes what was said (thoughts that are dropped, a summary in place of a history) is read as
a prompt. What is known is found by a hash of the messages up to each place.
"""

import asyncio
import json
from collections.abc import Sequence
from hashlib import sha256
from itertools import takewhile

import numpy as np

from agentpeft.apps.gateway.wire import Json, Message, Refused
from agentpeft.envs import SettingsError
from agentpeft.envs.tools.tool_table import Tool, ToolCall, ToolTable
from agentpeft.policies.messages import Ids
from agentpeft.policies.rollout.chat import ACTION, PROMPT, ChatFormat, to_message
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.rollout.tool_chat import ToolChat, to_turn

_NO_TOOL = "a tool must be {type: function, function: {name, parameters}}"


class Conversations:
    """The conversations of one episode; the first of them may be `builder` itself."""

    def __init__(self, builder: EpisodeBuilder) -> None:
        self._builder = builder
        self._answered: dict[bytes, tuple[EpisodeBuilder, int]] = {}
        """By a place: a conversation, and how many of its tokens lie before that."""

    async def find(
        self, messages: Sequence[Message], tools: Sequence[Json], chat: ChatFormat
    ) -> tuple[EpisodeBuilder, bytes]:
        """Returns the conversation to sample the next turn in, and the place in it.

        Raises: Refused where there is no way to read the messages.
        """
        places = _hash_places(messages, tools)
        try:
            return await self._continue(messages, places, chat), places[-1]
        except SettingsError as error:
            raise Refused(400, str(error)) from None

    def note_answer(self, asked: bytes, builder: EpisodeBuilder, answer: Message) -> None:
        """Notes that the turn at a place was sampled, and what the program was told."""
        self._answered[_hash(asked, answer.to_key())] = builder, len(builder.context)
        if builder is not self._builder and builder.num_turns == 1:
            self._builder.branches.append(builder)

    async def _continue(
        self, messages: Sequence[Message], places: Sequence[bytes], chat: ChatFormat
    ) -> EpisodeBuilder:
        """Returns the conversation that begins with the longest known part of the messages."""
        for number in range(len(messages) - 1, 0, -1):
            if (place := self._answered.get(places[number - 1])) is None:
                continue
            builder, end = place
            rest = messages[number:]
            if end == len(builder.context) and all(m.role in ("user", "tool") for m in rest):
                builder.add_answers(list(map(_to_answer, rest)), is_last=False)
                return builder
            return self._branch(messages, await _extend(builder.context[:end], rest, chat), chat)
        ids = await _render(messages, chat)
        root = self._builder
        if not root.num_turns and np.array_equal(ids, root.context):
            root.chat = chat
            return root
        return self._branch(messages, ids, chat)

    def _branch(self, messages: Sequence[Message], ids: Ids, chat: ChatFormat) -> EpisodeBuilder:
        branch = EpisodeBuilder("", ids, chat)
        branch.messages = [(message.role, message.text) for message in messages]
        branch.first_turn = self._builder.num_turns
        return branch


async def _render(messages: Sequence[Message], chat: ChatFormat) -> Ids:
    """Returns the tokens of a conversation that nothing is known of."""
    system = list(takewhile(lambda message: message.role == "system", messages))
    users = list(takewhile(lambda message: message.role == "user", messages[len(system) :]))
    if not users:
        raise Refused(400, "the first message, after a system's, must be a user's")
    ids = chat.begin(_join(users), _join(system) or None)
    return await _extend(ids, messages[len(system) + len(users) :], chat)


def _join(messages: Sequence[Message]) -> str:
    return "\n".join(message.text for message in messages)


async def _extend(ids: Ids, messages: Sequence[Message], chat: ChatFormat) -> Ids:
    """Returns the tokens of a conversation with further messages, up to the next turn.

    Of one that overfills the context it is the beginning. Other episodes are served meanwhile.
    """
    limit = chat.max_context_tokens
    answers: list[str] = []
    for message in [*messages, Message("assistant", "")]:
        await asyncio.sleep(0)
        if limit is not None and len(ids) > limit:
            break
        if message.role in ("user", "tool"):
            answers.append(_to_answer(message))
            continue
        if message.role == "system":
            raise Refused(400, "a system's message must be the first")
        if answers:
            ids = np.concatenate([ids, chat.extend(ids, *answers)])
            answers = []
        if message.text or message.calls:
            calls = map(chat.calls.write, message.calls) if isinstance(chat, ToolChat) else ()
            ids = np.concatenate([ids, chat.encode_turn("".join([message.text, *calls]))])
    return ids


class _UserText(str):
    """A user's message among the answers of tools."""


def _to_answer(message: Message) -> str:
    return _UserText(message.text) if message.role == "user" else message.text


def _hash_places(messages: Sequence[Message], tools: Sequence[Json]) -> list[bytes]:
    """Returns a hash of the messages up to each one, and of the tools."""
    places, last = [], _hash(b"", json.dumps(tools, sort_keys=True))
    for message in messages:
        last = _hash(last, message.to_key())
        places.append(last)
    return places


def _hash(before: bytes, text: str) -> bytes:
    return sha256(before + text.encode("utf-8", "surrogatepass")).digest()


class RequestTools(ToolTable):
    """The tools that a request brings, which the program calls itself."""

    def __init__(self, schemas: Sequence[Json]) -> None:
        """Raises: Refused where they are not in OpenAI's format, or none has a parameter."""
        super().__init__(find_call=lambda action: ToolCall("", {"action": action}))
        self._schemas = list(schemas)
        for schema in schemas:
            function = _below(schema, "function")
            properties = _below(_below(function, "parameters"), "properties")
            if not isinstance(function.get("name"), str):
                raise Refused(400, _NO_TOOL)
            tool = Tool(function["name"], "", dict.fromkeys(properties, ""), (), str)
            self._tools[tool.name] = tool
        # The chat learns from the first one how calls are written, arguments included
        ordered = sorted(self._tools.items(), key=lambda item: not item[1].parameters)
        self._tools = dict(ordered)
        if not ordered[0][1].parameters:
            raise Refused(400, "tools: one of them must have a parameter")

    def to_openai(self) -> list[Json]:
        """Returns the tools as they came."""
        return self._schemas


def _below(schema: Json, name: str) -> Json:
    value = schema.get(name)
    if not isinstance(value, dict | None):
        raise Refused(400, _NO_TOOL)
    return value or {}


class RequestChat(ToolChat):
    """A chat with a request's tools, in which users speak too, also behind a tool's answers."""

    def _write_answers(self, observations: Sequence[str]) -> str:
        kinds = ["user" if isinstance(text, _UserText) else "tool" for text in observations]
        num_tools = (*kinds, "user").index("user")
        if num_tools == len(kinds):
            return super()._write_answers(observations)
        turn = to_message("assistant", ACTION)
        if num_tools:
            turn = to_turn(self._make_call(ACTION))
        rest = map(to_message, kinds, observations)
        rendered = self._render([to_message("user", PROMPT), turn, *rest], asks=True)
        return rendered.partition(ACTION)[2].partition(self._closing)[2]
