"""The two formats that programs speak, OpenAI's chat completions and Anthropic's messages.

What a request asks beside its messages and tools is checked: what could not be trained on, or is
not there, is refused. How tokens are sampled is the run's affair, so `temperature`, `top_p`, `seed`
and limits of tokens are not read.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentpeft.apps.gateway.refusal import Refused
from agentpeft.envs.tools.tool_table import ToolCall

Json = dict[str, Any]
_REFUSED = ("stop", "stop_sequences", "logprobs", "response_format", "functions", "audio")
_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""Anthropic's words for OpenAI's."""


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

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    is_streamed: bool


@dataclass(frozen=True)
class ModelReply:
    """A sampled turn, as a program is told it. `finish` is stop, length or tool_calls."""

    id: str
    text: str
    thought: str
    calls: tuple[ToolCall, ...]
    finish: str
    num_prompt_tokens: int
    num_sampled_tokens: int


def read_chat(body: Json) -> ChatRequest:
    """Returns a request of `/v1/chat/completions`. Raises: Refused."""
    _check(body)
    messages = tuple(_read_message(message) for message in _list(body, "messages"))
    tools = tuple(_list(body, "tools")) if body.get("tools") else ()
    return _make_request(body, messages, () if body.get("tool_choice") == "none" else tools)


def read_anthropic(body: Json) -> ChatRequest:
    """Returns a request of `/v1/messages`. Raises: Refused."""
    _check(body)
    messages = [Message("system", _text(body["system"]))] if body.get("system") else []
    for message in _list(body, "messages"):
        messages += _read_blocks(message)
    tools = tuple(
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description", ""),
                "parameters": tool.get("input_schema", {}),
            },
        }
        for tool in (_list(body, "tools") if body.get("tools") else ())
    )
    return _make_request(body, tuple(messages), tools)


def write_chat(reply: ModelReply, model: str) -> Json:
    """Returns a reply as a chat completion."""
    message: Json = {"role": "assistant", "content": reply.text or (None if reply.calls else "")}
    if reply.thought:
        message["reasoning_content"] = reply.thought
    if reply.calls:
        message["tool_calls"] = _write_calls(reply)
    choice: Json = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
    usage = {
        "prompt_tokens": reply.num_prompt_tokens,
        "completion_tokens": reply.num_sampled_tokens,
        "total_tokens": reply.num_prompt_tokens + reply.num_sampled_tokens,
    }
    return {**_head(reply, model, "chat.completion"), "choices": [choice], "usage": usage}


def stream_chat(reply: ModelReply, model: str) -> Iterator[str]:
    """Yields a reply as the events of a stream: a turn is sampled as a whole."""
    head, whole = _head(reply, model, "chat.completion.chunk"), write_chat(reply, model)
    delta = whole["choices"][0]["message"]
    for number, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = number
    for change, finish in ((delta, None), ({}, reply.finish)):
        choice: Json = {"index": 0, "delta": change, "finish_reason": finish}
        yield _event({**head, "choices": [choice]})
    yield _event({**head, "choices": [], "usage": whole["usage"]})
    yield "data: [DONE]\n\n"


def write_anthropic(reply: ModelReply, model: str) -> Json:
    """Returns a reply as a message of Anthropic's."""
    blocks: list[Json] = [{"type": "text", "text": reply.text}] if reply.text else []
    blocks += [
        {"type": "tool_use", "id": f"{reply.id}-{n}", "name": c.name, "input": c.arguments}
        for n, c in enumerate(reply.calls)
    ]
    usage = {"input_tokens": reply.num_prompt_tokens, "output_tokens": reply.num_sampled_tokens}
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": _FINISH[reply.finish],
        "stop_sequence": None,
        "usage": usage,
    }


def stream_anthropic(reply: ModelReply, model: str) -> Iterator[str]:
    """Yields a reply as the events of Anthropic's stream."""
    whole = write_anthropic(reply, model)
    begun = {**whole, "content": [], "stop_reason": None}
    yield _event({"type": "message_start", "message": begun}, "message_start")
    for index, block in enumerate(whole["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        for kind, more in (
            ("content_block_start", {"content_block": empty}),
            ("content_block_delta", {"delta": delta}),
            ("content_block_stop", {}),
        ):
            yield _event({"type": kind, "index": index, **more}, kind)
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    kind = "message_delta"
    yield _event({"type": kind, "delta": end, "usage": whole["usage"]}, kind)
    yield _event({"type": "message_stop"}, "message_stop")


def _make_request(
    body: Json, messages: tuple[Message, ...], tools: tuple[Json, ...]
) -> ChatRequest:
    if not messages or messages[-1].role not in ("user", "tool"):
        raise Refused(400, "the last message must be a user's or a tool's")
    return ChatRequest(str(body.get("model", "")), messages, tools, body.get("stream") is True)


def _check(body: Json) -> None:
    if body.get("n", 1) not in (1, None):
        raise Refused(400, "n: each request samples one turn; send another for one more")
    for name in _REFUSED:
        value = body.get(name)
        if value and value != {"type": "text"}:
            raise Refused(400, f"{name} is not served: what is sampled is the run's affair")
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") in ("auto", "none"):
        choice = choice["type"]
    if choice not in (None, "auto", "none"):
        raise Refused(400, f"tool_choice: the model chooses, got {choice!r:.60}")


def _read_message(message: object) -> Message:
    if not isinstance(message, dict):
        raise Refused(400, f"a message must be an object, got {message!r:.60}")
    role = message.get("role")
    role = {"developer": "system", "function": "tool"}.get(str(role), role)
    if not isinstance(role, str) or role not in ("system", "user", "assistant", "tool"):
        raise Refused(400, f"no message has the role {role!r:.60}")
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or not all(isinstance(call, dict) for call in calls):
        raise Refused(400, "tool_calls must be a list of objects")
    return Message(role, _text(message.get("content")), tuple(map(ToolCall.from_openai, calls)))


def _read_blocks(message: object) -> Iterator[Message]:
    """Yields the messages that one of Anthropic's stands for: results of tools are of their own."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise Refused(400, "a message's role must be user or assistant")
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    results = [block for block in blocks if block.get("type") == "tool_result"]
    yield from (Message("tool", _text(block.get("content"))) for block in results)
    calls = tuple(
        ToolCall(block.get("name"), _as_texts(block.get("input")))
        for block in blocks
        if block.get("type") == "tool_use"
    )
    texts = [block for block in blocks if block.get("type") not in ("tool_result", "tool_use")]
    text = _text(texts if isinstance(content, list) else content)
    if text or calls or not results:
        yield Message(message["role"], text, calls)


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


def _as_texts(arguments: object) -> object:
    """Returns a call's arguments with numbers as texts, as OpenAI's are read."""
    return json.loads(json.dumps(arguments), parse_int=str, parse_float=str, parse_constant=str)


def _list(body: Json, name: str) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise Refused(400, f"{name} must be a list of objects, got {value!r:.60}")
    return value


def _head(reply: ModelReply, model: str, kind: str) -> Json:
    return {"id": reply.id, "object": kind, "created": int(time.time()), "model": model}


def _write_calls(reply: ModelReply) -> list[Json]:
    return [
        {
            "id": f"{reply.id}-{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for number, call in enumerate(reply.calls)
    ]


def _event(value: Json, kind: str = "") -> str:
    return (f"event: {kind}\n" if kind else "") + f"data: {json.dumps(value)}\n\n"
