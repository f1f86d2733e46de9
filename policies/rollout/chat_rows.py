"""Chats of a data set as tokens: what supervised steps learn from in place of an oracle's play.

A row has `messages`, of which every assistant's turn is learnt, or `prompt` and `completion`, of
which the completion alone is, whatever the prompt holds. Both are TRL's formats.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np

from agentpeft.envs import DataError, Outcome, SettingsError
from agentpeft.envs.tasks.hub import HUB_PREFIX, load_hub_rows
from agentpeft.envs.tasks.records import Json, Record, read_records
from agentpeft.policies.messages import Completion, EpisodeGroup, Ids, StopReason, Trajectory
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.rollout.play import StepResult

_SHUFFLES = 4
"""Seeds the rounds: other numbers than those of tasks, samples and choices (0 to 3)."""
Turn = tuple[str, str]
"""An assistant's text, and the user's answer to it; empty after the last."""


@dataclass(frozen=True)
class ChatRow:
    """A conversation: what it begins with, turns that are given, and turns that are learnt.

    `system` None: the settings' own system prompt.
    """

    name: str
    system: str | None
    prompt: str
    given: tuple[Turn, ...]
    learnt: tuple[Turn, ...]


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
    if record.fields.get("label") is False:
        raise record.error("label", "is false: what led to a failure is not to be imitated")
    if "messages" in record.fields:
        return _to_row(record, "messages", _read_messages(record, "messages", "user"), 0)
    if "prompt" not in record.fields or "completion" not in record.fields:
        raise DataError(f"{record.place}: a chat has messages, or a prompt and a completion")
    before = _read_messages(record, "prompt", "user")
    return _to_row(
        record,
        "completion",
        [*before, *_read_messages(record, "completion", "assistant")],
        sum(role == "assistant" for role, _ in before),
    )


def _read_messages(record: Record, field: str, role: str) -> list[tuple[str, str]]:
    """Returns roles and texts; a text alone is of `role`. Raises: DataError."""
    value: Json = record.fields[field]
    if isinstance(value, str):
        return [(role, value)]
    messages = []
    for message in record.get(field, list):
        match message:
            case {"role": "system" | "user" | "assistant" as own, "content": str() as text}:
                messages.append((own, text))
            case _:
                raise record.error(
                    field,
                    "must have messages with a role (system, user, assistant) and a text as "
                    f"content, got {message!r:.80}",
                )
    return messages


def _to_row(
    record: Record, field: str, messages: Sequence[tuple[str, str]], num_given: int
) -> ChatRow:
    """Returns the row of messages whose first `num_given` assistant's turns are not learnt."""
    rest = list(messages)
    system = rest.pop(0)[1] if rest and rest[0][0] == "system" else None
    roles = [role for role, _ in rest]
    if len(rest) < 2 or roles != [("user", "assistant")[i % 2] for i in range(len(rest))]:
        raise record.error(
            field,
            "must have user and assistant by turns, the user first (after a system message), got "
            f"{[role for role, _ in messages]!r:.80}",
        )
    texts = [text for _, text in rest[1:]]
    turns = [(text, "".join(texts[i + 1 : i + 2])) for i, text in enumerate(texts) if i % 2 == 0]
    learnt = tuple(turns[num_given:])
    if not learnt:
        raise record.error(field, "must end with an assistant's turn, which is what is learnt")
    return ChatRow(record.place, system, rest[0][1], tuple(turns[:num_given]), learnt)


def _to_trajectory(row: ChatRow, chat: ChatFormat) -> Trajectory:
    """Returns a row as an episode that succeeded; what is not learnt is its prompt."""
    ids: Ids = chat.begin(row.prompt, row.system)
    for said, answer in row.given:
        ids = np.concatenate([ids, chat.encode_action(said)])
        ids = np.concatenate([ids, chat.extend(ids, answer)])
    episode = EpisodeBuilder(row.prompt, ids, chat)
    for index, (said, answer) in enumerate(row.learnt, 1):
        turn = chat.encode_action(said)
        episode.add_turn(
            Completion(turn, np.zeros(len(turn), np.float32), StopReason.STOP_TOKEN, 0), said
        )
        is_last = index == len(row.learnt)
        episode.add_result(StepResult(answer, float(is_last), is_last, False, {}))
    episode.outcome = Outcome.SUCCESS
    return episode.to_trajectory()
