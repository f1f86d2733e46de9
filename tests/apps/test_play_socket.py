"""The server's own WebSocket endpoint beside that of OpenEnv's library."""

import json
import time
from contextlib import ExitStack
from itertools import count

import gymnasium
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from agentpeft.apps.serve.application import make_application
from agentpeft.apps.serve.gate import Limits
from agentpeft.apps.serve.metrics import ServerMetrics
from agentpeft.apps.serve.openenv_types import HTTPEnvServer, TextAction, TextObservation
from agentpeft.apps.serve.session import ServedEnvironment, TextSession
from agentpeft.envs.arithmetic.env import ArithmeticEnv

RESET, STATE = {"type": "reset", "data": {"seed": 3}}, {"type": "state"}
MESSAGES = {
    "an episode": [RESET, {"type": "step", "data": {"text": "12"}}, STATE, RESET],
    "a number as text": [RESET, {"type": "step", "data": {"text": 12}}],
    "metadata": [RESET, {"type": "step", "data": {"text": "1", "metadata": {"note": [1]}}}, STATE],
    "a reset without data": [RESET, {"type": "reset"}, STATE],
    "a reset of a task": [{"type": "reset", "data": {"task_id": "addition:12+34:plain"}}],
    "info": [
        {"type": "reset", "data": {"task_id": "addition:12+34:plain", "info": True}},
        {"type": "step", "data": {"text": "46"}},
    ],
    "half of a character": [
        {"type": "reset", "data": {"seed": 3, "episode_id": "\ud800"}},
        STATE,
        RESET,
    ],
    "a name": [{"type": "reset", "data": {"seed": 3, "episode_id": "mine"}}, STATE],
    "a question": [{"type": "step", "data": {"text": "", "metadata": {"ask": "describe"}}}],
    "an unknown question": [{"type": "step", "data": {"text": "", "metadata": {"ask": "x"}}}],
    "settings": [{"type": "reset", "data": {"seed": 1, "env_kwargs": {"num_digits": 1}}}, RESET],
    "settings refused": [{"type": "reset", "data": {"env_kwargs": {"max_turns": 5}}}, RESET],
    "a step before a reset": [{"type": "step", "data": {"text": "1"}}, RESET],
    "a step after the end": [RESET, *[{"type": "step", "data": {"text": "1"}}] * 2],
    "close": [RESET, {"type": "close"}],
    "wrong": [
        *("{", "", {}, {"type": "nope"}, {"type": 3}, {"type": None}, {"data": {}}),
        *({"type": "reset", "data": data} for data in (3, None, [], {"x": 1})),
        *({"type": "reset", "data": {"seed": seed}} for seed in (-1, 1.5, "3", True, 2**70)),
        *({"type": "reset", "data": {"task_id": task}} for task in (3, "", "addition")),
        *({"type": "step", "data": data} for data in (3, None, {}, {"text": None}, {"text": []})),
        *({"type": kind, "data": {}, "x": 1} for kind in ("reset", "step", "state", "close")),
        *({"type": "step", "data": {"type": kind}} for kind in ("list_tools", "call_tool")),
        *({"type": "step"}, {"type": "step", "data": {"text": "1", "x": 1}}, RESET),
        {"type": "state", "data": {}},
        {"type": "mcp"},
    ],
}


def serve(env_id, **kwargs):
    return ServedEnvironment(
        env_id=env_id,
        kwargs=kwargs,
        client_kwargs=frozenset({"num_digits"}),
        has_oracle=True,
        metrics=ServerMetrics(),
        max_message_bytes=2**20,
        name=env_id,
    )


@pytest.fixture(scope="module")
def served():
    return serve("AgentPEFT/Arithmetic-v0")


@pytest.fixture(scope="module")
def ours(served):
    application = make_application([served], Limits(max_sessions=4), (), served.metrics)
    with TestClient(application) as client:
        yield client


@pytest.fixture(scope="module")
def theirs(served):
    application = FastAPI()
    server = HTTPEnvServer(
        lambda: TextSession(served), TextAction, TextObservation, max_concurrent_envs=4
    )
    server.register_routes(application)
    with TestClient(application) as client:
        yield client


def talk(client, messages):
    """Returns the answers, and after the last one how the session ends, if it does."""
    answers = []
    with client.websocket_connect("ws://localhost/ws") as socket:
        for message in messages:
            socket.send_text(message if isinstance(message, str) else json.dumps(message))
            try:
                answers.append(json.loads(socket.receive_text()))
            except WebSocketDisconnect as end:
                answers.append(end.code)
                break
    return answers


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_answered_as_the_library_answers_them(name, ours, theirs):
    answers = talk(ours, MESSAGES[name])
    assert answers == talk(theirs, MESSAGES[name]) and answers


@pytest.mark.parametrize("said", ["[]", "3", "null", '"reset"', b'{"type":"reset"}'])
def test_what_is_no_object_ends_the_session_in_words(said, ours):
    with ours.websocket_connect("ws://localhost/ws") as socket:
        (socket.send_bytes if isinstance(said, bytes) else socket.send_text)(said)
        answer = socket.receive_json()["data"]
        assert answer == {
            "message": "a message is a JSON object, sent as text",
            "code": "SESSION_ERROR",
        }
        with pytest.raises(WebSocketDisconnect):
            socket.receive_text()


@pytest.mark.parametrize(
    "said",
    [
        "[" * 100_000,
        '{"type": "reset", "data": {"seed": ' + "9" * 5000 + "}}",
        '{"type": "step", "data": {"text": "\\ud800"}}',
        '{"type": "reset", "data": {"\\ud800": 1}}',
        '{"type": "reset", "data": {"self": 1}}',
        '{"type": "\\ud800"}',
        '{"type": "mcp", "data": {"id": "\\ud800"}}',
    ],
    ids=count(),
)
def test_what_no_text_can_hold_is_answered_and_the_session_goes_on(said, ours):
    with ours.websocket_connect("ws://localhost/ws") as socket:
        socket.send_text(said)
        assert set(socket.receive_json()) == {"type", "data"}
        socket.send_json(RESET)
        assert socket.receive_json()["type"] == "observation"


def test_a_server_of_texts_says_that_it_has_no_tools(ours):
    request = {"jsonrpc": "2.0", "method": "tools/list", "id": 4}
    for method in ("tools/list", "tools/call", "openenv/session/create"):
        asked = {**request, "method": method}
        answer = ours.post("http://localhost/mcp", json=asked).json()
        assert answer["id"] == 4 and answer["error"]["code"] == -32601
        assert "serve --tools" in answer["error"]["message"]
    assert talk(ours, [{"type": "mcp", "data": request}])[0]["data"]["error"]["code"] == -32601


def test_a_session_of_another_connection_cannot_be_had(ours):
    with ours.websocket_connect("ws://localhost/ws?session_id=3") as socket:
        assert socket.receive_json()["data"]["code"] == "SESSION_ERROR"


def slow_reward(episode):
    """Takes its time, as a judge does."""
    time.sleep(3)
    return 1.0


class OwnArithmetic(ArithmeticEnv):
    """May do what it likes in a step."""


def is_quick(served):
    session = TextSession(served)
    session.reset(seed=1)
    quick = session.has_quick_steps
    session.close()
    return quick


def test_only_what_is_known_to_take_no_time_is_played_at_once():
    gymnasium.register("Tests/OwnArithmetic-v0", OwnArithmetic)
    try:
        assert is_quick(serve("AgentPEFT/Arithmetic-v0"))
        assert is_quick(serve("AgentPEFT/GSM8K-v0", reward={"format_bonus": 0.1}))
        assert not is_quick(serve("AgentPEFT/GSM8K-v0", reward={"reward_fn": slow_reward}))
        assert not is_quick(serve("Tests/OwnArithmetic-v0"))
        assert not is_quick(serve("AgentPEFT/DBBench-v0"))
    finally:
        del gymnasium.registry["Tests/OwnArithmetic-v0"]


@pytest.mark.parametrize("disturb", ["a slow reward", "a flood"])
def test_no_session_waits_long_for_another(disturb):
    rewards = {"reward": {"reward_fn": slow_reward}} if disturb == "a slow reward" else {}
    served = serve("AgentPEFT/Arithmetic-v0", **rewards)
    application = make_application([served], Limits(), (), served.metrics)
    with TestClient(application) as client, ExitStack() as stack:
        first, second = (
            stack.enter_context(client.websocket_connect("ws://localhost/ws")) for _ in range(2)
        )
        first.send_json(RESET)
        first.receive_json()
        for _ in range(1 if rewards else 3000):
            first.send_json({"type": "step", "data": {"text": "1"}})
            first.send_json(RESET)
        start_s = time.monotonic()
        second.send_json(RESET)
        assert second.receive_json()["type"] == "observation"
        assert time.monotonic() - start_s < 5


def test_environments_whose_steps_wait_are_begun_side_by_side_too():
    served = serve("AgentPEFT/OSInteraction-v0", sandbox="docker")
    served.has_waiting_steps = True  # the server has made one at its start
    assert TextSession(served).has_waiting_steps
    assert not TextSession(serve("AgentPEFT/DBBench-v0")).has_waiting_steps


LONG = "a" * 300_000
LONG_MESSAGES = [
    {"type": LONG},
    {"type": [LONG]},
    {"type": "reset", LONG: 1},
    *({"type": "reset", "data": data} for data in ({LONG: 1}, {"seed": LONG}, {"task_id": LONG})),
    {"type": "reset", "data": {"env_kwargs": {LONG: 1}}},
    {"type": "reset", "data": {"env_kwargs": {"num_digits": LONG}}},
    *({"type": "step", "data": data} for data in ({"text": [LONG]}, {"text": "1", LONG: 1})),
    {"type": "step", "data": {"text": "1", "metadata": {"ask": LONG}}},
    {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": LONG}},
]
LONG_REQUESTS = [
    ("/step", {"action": LONG}),
    ("/step", {"action": {"text": "1", LONG: 1}}),
    ("/reset", {"seed": LONG}),
    ("/reset", {LONG: 1}),
    ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": LONG}),
]


@pytest.mark.parametrize("message", LONG_MESSAGES, ids=range(len(LONG_MESSAGES)))
def test_no_error_repeats_a_long_message(message, ours):
    [answer] = talk(ours, [message])
    assert answer["type"] in ("error", "mcp") and len(json.dumps(answer)) < 5000


@pytest.mark.parametrize(("path", "body"), LONG_REQUESTS, ids=range(len(LONG_REQUESTS)))
def test_no_error_repeats_a_long_request(path, body, ours):
    answer = ours.post(path, json=body, headers={"host": "localhost"})
    assert len(answer.content) < 5000
