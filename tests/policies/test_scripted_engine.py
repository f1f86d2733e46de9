import asyncio

import numpy as np
import pytest

from agentpeft.policies.delivery.version import ack_of, make_version
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import GenerationRequest, StopReason
from agentpeft.policies.rollout.chat import ChatFormat
from tests.policies.test_chat import CHATML, make_tokenizer

CHAT = ChatFormat(make_tokenizer(CHATML))


def ask(engine, session="a", **kwargs):
    request = GenerationRequest(session, CHAT.begin("hello"), (0,), **kwargs)
    return asyncio.run(engine.generate(request))


def test_texts_are_said_turn_by_turn_with_the_stop_token():
    engine = ScriptedEngine(CHAT, {"a": ["one", "two"], "b": ["three"]})
    engine.update_sessions(opened=["a", "b"])
    said = [ask(engine, session) for session in "aba"]
    assert [CHAT.decode(c.token_ids) for c in said] == ["one", "three", "two"]
    assert all(c.stop_reason is StopReason.STOP_TOKEN for c in said)
    assert all(c.token_ids[-1] == CHAT.end_token_id for c in said)
    np.testing.assert_array_equal(said[0].logprobs, np.zeros(4, np.float32))


def test_a_function_says_what_comes_next():
    engine = ScriptedEngine(CHAT, lambda session, turn: f"{session}{turn}")
    engine.update_sessions(opened=["a"])
    assert [CHAT.decode(ask(engine).token_ids) for _ in range(2)] == ["a0", "a1"]
    engine.update_sessions(opened=["a"], closed=["a"])
    assert CHAT.decode(ask(engine).token_ids) == "a0"


@pytest.mark.parametrize(
    ("max_new_tokens", "room", "text", "reason"),
    [
        (3, 99, "one", StopReason.MAX_NEW_TOKENS),
        (9, 2, "on", StopReason.CONTEXT_FULL),
        (9, 4, "one", StopReason.STOP_TOKEN),
        (9, -1, "", StopReason.CONTEXT_FULL),
    ],
)
def test_limits_cut_what_is_said(max_new_tokens, room, text, reason):
    engine = ScriptedEngine(CHAT, {"a": ["one"]}, len(CHAT.begin("hello")) + room)
    engine.update_sessions(opened=["a"])
    completion = ask(engine, max_new_tokens=max_new_tokens)
    assert (CHAT.decode(completion.token_ids), completion.stop_reason) == (text, reason)


def test_a_session_that_is_not_open_or_has_no_more_texts_is_an_error():
    engine = ScriptedEngine(CHAT, {"a": []})
    with pytest.raises(EngineError, match="not open"):
        ask(engine)
    engine.update_sessions(opened=["a"])
    with pytest.raises(EngineError, match="0 texts"):
        ask(engine)


def test_an_adapter_is_acknowledged_and_named():
    engine = ScriptedEngine(CHAT, {"a": ["one"]})
    adapter = make_version(3, "run", {"w": np.ones(2, np.float32)}, 2.0)
    assert engine.load_adapter(adapter) == ack_of(adapter)
    engine.update_sessions(opened=["a"])
    assert ask(engine).adapter_version == 3
    engine.close()
