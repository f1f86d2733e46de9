"""`EndpointToolChat`: a conversation of tool calls with a model whose tokens are not known here."""

import json
from collections.abc import Mapping
from typing import Any

from agentpeft.envs.tools.tool_table import ToolCall, ToolTable, read_json
from agentpeft.policies.messages import Ids
from agentpeft.policies.rollout.chat import FoundAction, Messages, TextChat, to_message
from agentpeft.policies.rollout.tool_chat import find_actions
from agentpeft.policies.settings.config import ModelSettings


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
        kept = {"content": message.get("content"), "tool_calls": calls}
        return self.encode_turn(json.dumps(kept, ensure_ascii=False))

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
            own = {"tool_calls": calls} if calls else {}
            messages.append(to_message("assistant", said["content"] or "") | own)
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
