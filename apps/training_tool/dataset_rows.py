"""Tasks as the rows of a data set: conversations, or the texts that a model's template makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from agentpeft.envs import Task, TextEnv
from agentpeft.policies.rollout.scripted_play import play_actions, read_any_reward
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:
    from agentpeft.policies.rollout.chat import ChatFormat

Json: TypeAlias = dict[str, Any]
RowFormat: TypeAlias = Literal["sft", "rl"]


@dataclass(frozen=True)
class _Conversation:
    """A prompt, what the oracle says, and what the environment answers to each turn."""

    prompt: str
    actions: Sequence[str]
    observations: Sequence[str]


def make_row(env: TextEnv[Task], task: Task, form: RowFormat, chat: "ChatFormat | None") -> Json:
    """Returns a prompt with its task ("rl"), or the oracle's conversation ("sft").

    Both are messages, or with `chat` texts: a `prompt`, or the whole as `text`.
    """
    prompt = env.reset(options={"task": task})[0]
    if form == "rl":
        asked = [_message("user", prompt)] if chat is None else _begin(chat, prompt)
        return {"prompt": asked, "task_id": task.task_id, "skills": list(task.skills)}
    actions = list(env.oracle_actions(task))
    results = list(play_actions(env, actions, read_any_reward))
    played = _Conversation(
        prompt, actions[: len(results)], [result.observation for result in results]
    )
    return {"messages": _to_messages(played)} if chat is None else {"text": _render(played, chat)}


def open_chat(settings: Settings) -> "ChatFormat":
    """Returns how a run with these settings would write conversations.

    No weights are loaded; only the built-in model is made where it is not cached. Raises:
    SettingsError.
    """
    from agentpeft.policies.models.base_files import find_base
    from agentpeft.policies.rollout import chat

    return chat.open_chat(find_base(settings)[1], settings)


def _to_messages(played: _Conversation) -> list[Json]:
    messages = [_message("user", played.prompt)]
    for action, observation in zip(played.actions, played.observations, strict=True):
        messages += [_message("assistant", action), _message("user", observation)]
    return messages[:-1]


def _begin(chat: "ChatFormat", prompt: str) -> str:
    return _decode(chat, chat.begin(prompt).tolist())


def _render(played: _Conversation, chat: "ChatFormat") -> str:
    """Returns the text of exactly the tokens that a supervised step would see."""
    ids = chat.begin(played.prompt)
    for index, action in enumerate(played.actions):
        if index:
            ids = np.concatenate([ids, chat.extend(ids, played.observations[index - 1])])
        ids = np.concatenate([ids, chat.encode_action(action)])
    return _decode(chat, ids.tolist())


def _decode(chat: "ChatFormat", ids: list[int]) -> str:
    return str(chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def _message(role: str, content: str) -> Json:
    return {"role": role, "content": content}
