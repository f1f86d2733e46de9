"""The two formats that programs speak, OpenAI's chat completions and Anthropic's messages.

What a request asks beside its messages and tools is checked: what could not be trained on, or is
not there, is refused. How tokens are sampled is the run's affair, so `temperature`, `top_p`, `seed`
and limits of tokens are not read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentpeft.envs.tools.tool_table import ToolCall

Json = dict[str, Any]
MODEL = "policy"
"""The name of the model, whatever a request calls it."""
_SAMPLING = ("stop", "stop_sequences", "logprobs", "top_logprobs", "logit_bias")
_PENALTIES = ("presence_penalty", "frequency_penalty")
_REFUSED = (*_SAMPLING, *_PENALTIES, "response_format", "functions", "audio", "prediction")
_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""Anthropic's words for OpenAI's."""


class Refused(Exception):  # noqa: N818 (a program's mistake or a limit, not an error of ours)
    """A request that is not answered; `status` is HTTP's, `kind` OpenAI's type of error."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind


@dataclass(frozen=True)
class Message:
    """A message of a conversation. `role` is system, user, assistant or tool."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()

    def to_key(self) -> str:
        """Returns what two messages have in common if they say the same; ids of calls differ."""
        calls = [[call.name, call.arguments] for call in self.calls]
        return json.dumps([self.role, self.text, calls], sort_keys=True, default=str)


@dataclass(frozen=True)
class ChatRequest:
    """What a program asks for: the next turn of a conversation. `tools` are in OpenAI's format."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...]


def read_chat(body: Json) -> ChatRequest:
    """Returns a request of `/v1/chat/completions`. Raises: Refused."""
    _check(body)
    messages = tuple(map(read_message, _list(body, "messages")))
    if messages[-1].role not in ("user", "tool"):
        raise Refused(400, "the last message must be a user's or a tool's")
    has_tools = body.get("tools") and body.get("tool_choice") != "none"
    tools = tuple(_list(body, "tools")) if has_tools else ()
    return ChatRequest(messages, tools)


def read_message(message: Json) -> Message:
    """Returns a message in OpenAI's format. Raises: Refused."""
    role = message.get("role")
    role = {"developer": "system", "function": "tool"}.get(str(role), role)
    if not isinstance(role, str) or role not in ("system", "user", "assistant", "tool"):
        raise Refused(400, f"no message has the role {role!r:.60}")
    calls = _list(message, "tool_calls") if message.get("tool_calls") else []
    return Message(role, _text(message.get("content")), tuple(map(ToolCall.from_openai, calls)))


def read_anthropic(body: Json) -> ChatRequest:
    """Returns a request of `/v1/messages`, read as the one of OpenAI's that it stands for.

    Raises: Refused.
    """
    messages: list[Json] = []
    if body.get("system"):
        messages.append({"role": "system", "content": body["system"]})
    for message in _list(body, "messages"):
        messages += _from_blocks(message)
    names = {"name": "name", "description": "description", "input_schema": "parameters"}
    tools = [
        {"type": "function", "function": {names[n]: tool[n] for n in names if n in tool}}
        for tool in (_list(body, "tools") if body.get("tools") else ())
    ]
    choice = body.get("tool_choice")
    choice = choice.get("type") if isinstance(choice, Mapping) else choice
    return read_chat({**body, "messages": messages, "tools": tools, "tool_choice": choice})


def stream_chat(completion: Json) -> Iterator[str]:
    """Yields a chat completion as the events of a stream: a turn is sampled as a whole."""
    (choice,) = completion["choices"]
    head = {**completion, "object": "chat.completion.chunk"}
    usage = head.pop("usage")
    calls = [{**c, "index": n} for n, c in enumerate(choice["message"].get("tool_calls", ()))]
    delta = choice["message"] | ({"tool_calls": calls} if calls else {})
    said: Json = {"index": 0, "delta": delta, "finish_reason": None}
    yield _event({**head, "choices": [said]})
    ended: Json = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield _event({**head, "choices": [ended], "usage": usage})
    yield "data: [DONE]\n\n"


def to_anthropic(completion: Json) -> Json:
    """Returns a chat completion as a message of Anthropic's."""
    (choice,), usage = completion["choices"], completion["usage"]
    text, calls = choice["message"]["content"], choice["message"].get("tool_calls", ())
    blocks: list[Json] = [{"type": "text", "text": text}] if text else []
    for call in calls:
        function = call["function"]
        values = {"name": function["name"], "input": json.loads(function["arguments"])}
        blocks.append({"type": "tool_use", "id": call["id"], **values})
    counts = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    return {
        "id": completion["id"],
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": blocks,
        "stop_reason": _FINISH[choice["finish_reason"]],
        "stop_sequence": None,
        "usage": counts,
    }


def stream_anthropic(completion: Json) -> Iterator[str]:
    """Yields a chat completion as the events of Anthropic's stream."""
    whole = to_anthropic(completion)
    begun = {**whole, "content": [], "stop_reason": None}
    yield _named_event("message_start", message=begun)
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty = {**block, "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield _named_event("content_block_start", index=index, content_block=empty)
        yield _named_event("content_block_delta", index=index, delta=delta)
        yield _named_event("content_block_stop", index=index)
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _named_event("message_delta", delta=end, usage=whole["usage"])
    yield _named_event("message_stop")


def _check(body: Json) -> None:
    if body.get("n", 1) not in (1, None):
        raise Refused(400, "n: each request samples one turn; send another for one more")
    for name in _REFUSED:
        value = body.get(name)
        if value and value != {"type": "text"}:
            raise Refused(400, f"{name} is not served: what is sampled is the run's affair")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise Refused(400, f"tool_choice: the model chooses, got {body['tool_choice']!r:.60}")


def _from_blocks(message: Json) -> Iterator[Json]:
    """Yields the messages that one of Anthropic's stands for: results of tools are of their own."""
    content = message.get("content")
    if not isinstance(content, list):
        yield message
        return
    kinds: dict[str, list[Json]] = {"tool_result": [], "tool_use": [], "": []}
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else ""
        kinds[kind if kind in ("tool_result", "tool_use") else ""].append(block)
    for result in kinds["tool_result"]:
        yield {"role": "tool", "content": result.get("content")}
    calls = [
        {"function": {"name": call.get("name"), "arguments": json.dumps(call.get("input"))}}
        for call in kinds["tool_use"]
    ]
    if kinds[""] or calls or not content:
        yield {"role": message.get("role"), "content": kinds[""], "tool_calls": calls}


def _text(content: object) -> str:
    """Returns the text of a message's content. Raises: Refused where it has anything else."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            texts = [block.get("text") for block in content if isinstance(block, dict)]
            if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
                return "".join(map(str, texts))
    raise Refused(400, "a message's content must be text")


def _list(body: Json, name: str) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise Refused(400, f"{name} must be a list of objects, got {value!r:.60}")
    return value


def _event(value: Json) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _named_event(kind: str, **values: object) -> str:
    return f"event: {kind}\n{_event({'type': kind, **values})}"
