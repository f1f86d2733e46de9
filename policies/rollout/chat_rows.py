"""Chats of a data set as tokens: what supervised steps learn from in place of an oracle's play.

A row has `messages`, of which every assistant's turn is learnt, or `prompt` and `completion`, of
which the completion alone is, whatever the prompt holds. Both are TRL's formats. A message may say
that it is not to be learnt, in the words of OpenAI, Axolotl, tinker and ms-swift (`_FLAGS`).
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

import numpy as np

from agentpeft.envs import DataError, Outcome, SettingsError
from agentpeft.envs.tasks.hub import HUB_PREFIX, load_hub_rows
from agentpeft.envs.tasks.records import Json, Record, read_records
from agentpeft.policies.messages import EpisodeGroup, Trajectory
from agentpeft.policies.rollout.chat import ChatFormat

_SHUFFLES = 4
"""Seeds the rounds: other numbers than those of tasks, samples and choices (0 to 3)."""
_ROLES = ("system", "user", "assistant")
_FLAGS = ("weight", "train", "training", "trainable", "loss")
"""Fields of a message, or of a row: 0 and false say that it is not to be learnt."""
_WITHOUT_MEANING = {"id", "name"}
"""Further fields that a message may have."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ChatMessage:
    """What someone says; an assistant's may be learnt."""

    role: str
    text: str
    is_learnt: bool


@dataclass(frozen=True)
class ChatRow:
    """A conversation: user and assistant by turns, the user first, up to the last that is learnt.

    `system` None: the settings' own system prompt.
    """

    name: str
    system: str | None
    messages: tuple[ChatMessage, ...]


@lru_cache(maxsize=2)
def read_chats(path: str) -> tuple[ChatRow, ...]:
    """Returns the rows of a JSONL, JSON or parquet file, or of `hub:owner/name[:split]`.

    Raises: DataError, SettingsError without the `datasets` package.
    """
    rows = tuple(_read_row(record) for record in _read_records(path))
    if not rows:
        raise DataError(f"{path}: no chats in it")
    return rows


def _read_records(path: str) -> Iterator[Record]:
    if not path.startswith(HUB_PREFIX):
        return read_records(path)
    dataset, _, split = path.removeprefix(HUB_PREFIX).partition(":")
    if not dataset:
        raise SettingsError(f"chats {path!r}: expected hub:owner/name or hub:owner/name:split")
    return load_hub_rows(dataset, None, split or "train")


def chat_groups(
    path: str, chat: ChatFormat, seed: int, first: int = 0
) -> Generator[EpisodeGroup, None, None]:
    """Yields a group of one conversation for each position from `first` on, without end.

    The rows are gone through in shuffled rounds. Raises: DataError.
    """
    rows = read_chats(path)
    for position in count(first):
        turn, index = divmod(position, len(rows))
        if index == 0 or position == first:
            order = np.random.default_rng([seed, _SHUFFLES, turn]).permutation(len(rows))
        row = rows[order[index]]
        yield EpisodeGroup(position, row.name, (), 0, (_to_trajectory(row, chat),))


def _read_row(record: Record) -> ChatRow:
    if record.fields.get("label") in (False, 0):
        raise record.error("label", "is false: what led to a failure is not to be imitated")
    for name in _FLAGS:
        match record.fields.get(name):
            case None | 1:
                pass
            case 0:
                raise record.error(name, "says that the row is not to be learnt: leave it out")
            case value:
                raise record.error(name, f"must be 0 or 1 (false or true), got {value!r:.60}")
    if record.fields.get("tools"):
        raise record.error("tools", "is not read: chats are texts alone, without tool calls")
    if "messages" in record.fields:
        return _to_row(record, "messages", _read_messages(record, "messages", "user"))
    if "prompt" not in record.fields or "completion" not in record.fields:
        raise DataError(f"{record.place}: a chat has messages, or a prompt and a completion")
    prompt = [replace(m, is_learnt=False) for m in _read_messages(record, "prompt", "user")]
    completion = _read_messages(record, "completion", "assistant")
    return _to_row(record, "completion", [*prompt, *completion])


def _read_messages(record: Record, field: str, role: str) -> list[ChatMessage]:
    """Returns messages; a text alone is of `role`. Raises: DataError."""
    value: Json = record.fields[field]
    if isinstance(value, str):
        messages = [ChatMessage(role, value, role == "assistant")]
    else:
        messages = [_read_message(record, field, message) for message in record.get(field, list)]
    for message in messages:
        if half := _SURROGATE.search(message.text):
            problem = f"must be Unicode text, has {half[0]!a}, half of a surrogate pair"
            raise record.error(field, problem)
    return messages


def _read_message(record: Record, field: str, message: Json) -> ChatMessage:
    match message:
        case {"role": str(role), "content": str(text), **others} if role in _ROLES:
            is_assistant = role == "assistant"
        case _:
            raise record.error(
                field,
                f"must have messages with a role ({', '.join(_ROLES)}) and a text as content, got "
                f"{message!r:.80}",
            )
    flags = {name: others.pop(name) for name in _FLAGS if others.get(name) is not None}
    for name, value in flags.items():
        if value not in (0, 1) or (value and not is_assistant):
            raise record.error(
                field,
                f"must have {name!r} 0 or 1 (false or true), and 1 in an assistant's message "
                f"alone, got {value!r:.60} in one of role {role!r}",
            )
    empty: tuple[Json, ...] = (None, "", [], {})
    unread = [key for key in others if key not in _WITHOUT_MEANING and others[key] not in empty]
    if unread:
        raise record.error(
            field,
            f"has a message with {unread[0]!r}, which is not read: chats are texts alone, of role, "
            f"content and {', '.join(_FLAGS)}",
        )
    return ChatMessage(role, text, is_assistant and all(flags.values()))


def _to_row(record: Record, field: str, messages: list[ChatMessage]) -> ChatRow:
    if any(message.is_learnt and not message.text.strip() for message in messages):
        raise record.error(field, "has an assistant's turn to learn that has no text")
    system = messages[0].text if messages and messages[0].role == "system" else None
    talk = messages if system is None else messages[1:]
    roles = [message.role for message in talk]
    if len(talk) < 2 or roles != [("user", "assistant")[i % 2] for i in range(len(talk))]:
        raise record.error(
            field,
            "must have user and assistant by turns, the user first (after a system message), got "
            f"{[message.role for message in messages]!r:.80}",
        )
    num_messages = max((n for n, message in enumerate(talk, 1) if message.is_learnt), default=0)
    if not num_messages:
        raise record.error(field, "must end with an assistant's turn, which is what is learnt")
    return ChatRow(record.place, system, tuple(talk[:num_messages]))


def _to_trajectory(row: ChatRow, chat: ChatFormat) -> Trajectory:
    """Returns a row as an episode that succeeded; its prompt reaches to what is learnt first."""
    pieces, masks = [chat.begin(row.messages[0].text, row.system)], [False]
    for message in row.messages[1:]:
        is_said = message.role == "assistant"
        ids = chat.encode_action(message.text) if is_said else chat.extend(pieces[-1], message.text)
        pieces.append(ids)
        masks.append(message.is_learnt)
    lengths, ids = list(map(len, pieces)), np.concatenate(pieces)
    loss_mask = np.repeat(masks, lengths)
    first = int(loss_mask.argmax())
    ends = np.cumsum(lengths)[masks] - first
    return Trajectory(
        prompt_ids=ids[:first],
        token_ids=ids[first:],
        loss_mask=loss_mask[first:],
        sampling_logprobs=np.zeros(len(ids) - first, np.float32),
        turn_ends=tuple(ends.tolist()),
        turn_rewards=(*[0.0] * (len(ends) - 1), 1.0),
        outcome=Outcome.SUCCESS,
    )
