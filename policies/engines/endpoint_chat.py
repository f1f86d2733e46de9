"""Conversations with a model whose tokens are not known here: as texts, or with tool calls."""

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from agentpeft.envs.tools.tool_table import ToolCall, ToolTable, read_json
from agentpeft.policies.messages import Ids
from agentpeft.policies.rollout.chat import ChatFormat, FoundAction, Messages, to_message
from agentpeft.policies.rollout.tool_chat import find_actions
from agentpeft.policies.settings.config import ModelSettings

_DEFAULTS = ModelSettings()


class TextChat(ChatFormat):
    """A conversation without a tokenizer: ids are characters, and every turn ends with `END`."""

    END = "\U0010ffff"
    """A character that is none: Unicode leaves it to programs."""
    tools: Sequence[dict[str, Any]] = ()
    """What the model can call, in OpenAI's format."""

    def __init__(self, model: ModelSettings = _DEFAULTS) -> None:
        """`model` says where thoughts end and what the system prompt is."""
        self._model, self._is_chat = model, False
        self._header, self._closing = "", self.END
        self._before_action, self._is_thought_opened = "", False
        self.end_token_id = ord(self.END)
        self.stop_token_ids = frozenset({self.end_token_id})
        self._stop_texts = {self.end_token_id: self.END}

    def begin(self, prompt: str, system: str | None = None) -> Ids:
        """Returns the first turn; a system message would be a field of the request, not a turn."""
        del system
        return self.encode_action(prompt)

    def decode(self, sampled: Ids) -> str:
        """Returns the text, without ends of turns."""
        return "".join(map(chr, sampled)).replace(self.END, "")

    def encode_message(self, message: Mapping[str, Any]) -> Ids:
        """Returns the turn of a message of OpenAI's format."""
        return self.encode_turn(message.get("content") or "")

    def to_messages(self, ids: Ids) -> Messages:
        """Returns a conversation whose turns are whole, the system's message first."""
        system = [to_message("system", self.system_prompt)] if self.system_prompt else []
        texts = "".join(map(chr, ids)).split(self.END)[:-1]
        return [*system, *map(to_message, cycle(("user", "assistant")), texts)]

    def _encode_after(self, context: str, text: str) -> Ids:
        del context
        return np.fromiter(map(ord, text), np.int64, len(text))


class EndpointToolChat(TextChat):
    """Turns of OpenAI's format, as texts: a message in JSON, then a list of its calls' answers.

    A turn may have several calls, each an action of its own. One without a call is an invalid
    action, and the model is told in words.
    """

    def __init__(self, model: ModelSettings, tools: ToolTable) -> None:
        """`tools` are an environment's."""
        super().__init__(model)
        self._table = tools
        self.tools = tools.to_openai()

    def encode_message(self, message: Mapping[str, Any]) -> Ids:
        """Returns a turn that keeps the text and the calls of a message."""
        calls = [
            {"id": call.get("id") or f"call-{number}", "type": "function"}
            | {"function": call.get("function")}
            for number, call in enumerate(message.get("tool_calls") or ())
        ]
        fields = {"content": message.get("content"), "tool_calls": calls}
        return self.encode_turn(json.dumps(fields, ensure_ascii=False))

    def find_actions(self, said: str) -> list[FoundAction]:
        """Returns the action of each call in turn; of a turn without a call an invalid one."""
        calls = json.loads(said)["tool_calls"] if said else ()
        return find_actions(self._table, map(ToolCall.from_openai, calls))

    def extend(self, ids: Ids, *observations: str) -> Ids:
        """Returns the turn of the answers to all calls."""
        return super().extend(ids, json.dumps(observations, ensure_ascii=False))

    def to_messages(self, ids: Ids) -> Messages:
        """Returns the conversation as messages, the system's first."""
        messages = super().to_messages(ids)
        first = next(i for i, message in enumerate(messages) if message["role"] == "user") + 1
        turns = [json.loads(message["content"]) for message in messages[first:]]
        del messages[first:]
        for said, answers in zip(turns[::2], turns[1::2], strict=True):
            calls = list(map(_repair, said["tool_calls"]))
            extra = {"tool_calls": calls} if calls else {}
            messages.append(to_message("assistant", said["content"] or "") | extra)
            for call, answer in zip(calls, answers, strict=False):
                messages.append(to_message("tool", answer) | {"tool_call_id": call["id"]})
            if not calls:
                messages.append(to_message("user", answers[0]))
        return messages


def _repair(call: dict[str, Any]) -> dict[str, Any]:
    """Returns a call that every server can read again, without arguments that are no JSON."""
    function = call.get("function") or {}
    if isinstance(read_json(str(function.get("arguments"))), dict):
        return call
    name = str(function.get("name", ""))
    return {"id": call["id"], "type": "function", "function": {"name": name, "arguments": "{}"}}
