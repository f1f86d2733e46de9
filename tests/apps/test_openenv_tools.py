"""Tools over OpenEnv's protocol: by its own client, by plain messages, and what ends sessions."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import gymnasium
import httpx
import pytest
import websockets.sync.client as websockets
from env_server import TOKEN, env_server
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import InvalidStatus

from agentpeft.apps.drivers.tool_episode import ToolEpisode, tool_kwargs
from agentpeft.apps.serve.application import make_application
from agentpeft.apps.serve.gate import Limits
from agentpeft.apps.serve.metrics import ServerMetrics
from agentpeft.apps.serve.session import ServedEnvironment
from agentpeft.envs.tools.tool_table import ToolCall

DB_BENCH, ARITHMETIC = "AgentPEFT/DBBench-v0", "AgentPEFT/Arithmetic-v0"
CREATE, CLOSE = "openenv/session/create", "openenv/session/close"
CALLS = {
    "the oracle": None,
    "malformed": [
        ("execute_sql", {"query": "SELECT 1"}),
        ("execute_sql", {}),
        ("nope", {"sql": "SELECT 1"}),
        ("submit", {"answer": [1]}),
        ("execute_sql", {"sql": "SELECT '\ud800'"}),
        ("submit", {"answer": 4}),
    ],
    "an empty answer": [("execute_sql", {"sql": "CREATE TABLE t (a INT)"}), ("submit", {})],
}


def serve(env_id, **kwargs):
    return ServedEnvironment(
        env_id=env_id,
        kwargs=kwargs,
        client_kwargs=frozenset(),
        has_oracle=False,
        has_tools=True,
        metrics=ServerMetrics(),
        max_message_bytes=2**20,
        name=env_id,
    )


@contextmanager
def client_of(*served, **limits):
    application = make_application(served, Limits(**limits), (), served[0].metrics)
    with TestClient(application, base_url="http://localhost") as client:
        yield client


def ask(client, method, path="/mcp", **params):
    """Returns the result of a request, or its error."""
    said = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer = client.post(path, content=json.dumps(said)).json()
    assert answer["id"] == 7 and answer["jsonrpc"] == "2.0"
    return answer.get("result", answer.get("error"))


def connect(client, path="/ws"):
    return client.websocket_connect(f"ws://localhost{path}")


def num_sessions(client):
    (line,) = (
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("agentpeft_sessions ")
    )
    return float(line.split()[1])


def step(socket, data):
    socket.send_json({"type": "step", "data": data})
    return socket.receive_json()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("door", ["step", "mcp"])
def test_calls_are_played_and_graded_as_everywhere(name, door):
    kwargs = {"max_turns": 8, **tool_kwargs(DB_BENCH, {})}
    env = gymnasium.make(DB_BENCH, **kwargs)
    prompt, _ = env.reset(seed=4)
    calls = CALLS[name]
    if calls is None:
        actions = env.unwrapped.oracle_actions(env.unwrapped.task)
        found = [env.unwrapped.get_tools().find_call(action) for action in actions]
        calls = [(call.name, call.arguments) for call in found]
    episode = ToolEpisode(env)
    with client_of(serve(DB_BENCH, **kwargs)) as client, connect(client) as socket:
        socket.send_json({"type": "reset", "data": {"seed": 4}})
        assert socket.receive_json()["data"]["observation"]["text"] == prompt
        for tool, arguments in calls:
            before = episode.episode_return
            expected = episode.call(ToolCall(tool, arguments))
            expected = expected.encode("utf-8", "replace").decode()
            if door == "step":
                said = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
                data = step(socket, said)["data"]
                seen = data["observation"]
                assert (seen["tool_name"], seen["result"], seen["error"]) == (tool, expected, None)
                assert (data["done"], data["reward"]) == (
                    episode.is_over,
                    pytest.approx(episode.episode_return - before),
                )
            else:
                params = {"name": tool, "arguments": arguments}
                request = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params}
                socket.send_json({"type": "mcp", "data": request})
                answer = socket.receive_json()["data"]
                assert answer["id"] == "a" and answer["result"]["data"] == expected
                assert answer["result"]["content"] == [{"type": "text", "text": expected}]
            if episode.is_over:
                break
        assert (episode.outcome == "success") == (name == "the oracle")
    env.close()


def test_tools_are_listed_before_an_episode_and_by_any_door():
    with client_of(serve(DB_BENCH)) as client, connect(client) as socket:
        listed = step(socket, {"type": "list_tools"})["data"]["observation"]["tools"]
        assert [tool["name"] for tool in listed] == ["execute_sql", "submit"]
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        socket.send_json({"type": "mcp", "data": request})
        by_message = socket.receive_json()["data"]["result"]["tools"]
        assert by_message == ask(client, "tools/list")["tools"]
        schemas = [(tool["name"], tool["inputSchema"]) for tool in by_message]
        assert schemas == [(tool["name"], tool["input_schema"]) for tool in listed]


@pytest.mark.parametrize(
    "data",
    [
        {"type": "call_tool"},
        {"type": "call_tool", "tool_name": 3},
        {"type": "call_tool", "tool_name": "submit", "arguments": []},
        {"type": "call_tool", "tool_name": "submit", "x": 1},
        {"type": "list_tools", "x": 1},
        {"type": "else", "text": "1"},
        {"type": "call_tool", "tool_name": "submit", "arguments": {"answer": "1"}},  # no episode
    ],
)
def test_what_is_no_call_is_an_error_and_the_session_goes_on(data):
    with client_of(serve(ARITHMETIC)) as client, connect(client) as socket:
        assert step(socket, data)["type"] == "error"
        socket.send_json({"type": "reset", "data": {"seed": 4}})
        assert socket.receive_json()["type"] == "observation"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{", -32700),
        ("[" * 100_000, -32700),
        ("[]", -32600),
        ("{}", -32600),
        ('{"jsonrpc": "1.0", "method": "tools/list"}', -32600),
        ('{"jsonrpc": "2.0", "method": "tools/list", "params": []}', -32600),
        ('{"jsonrpc": "2.0", "method": "tools/call", "params": {"session_id": 3}}', -32000),
        ('{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "submit"}}', -32000),
        ('{"jsonrpc": "2.0", "method": "openenv/session/close"}', -32000),
        (
            '{"jsonrpc": "2.0", "method": "openenv/session/close", "params": {"session_id": []}}',
            -32000,
        ),
    ],
)
def test_what_is_no_request_is_told_so(body, code):
    with client_of(serve(ARITHMETIC)) as client:
        answer = client.post("/mcp", content=body)
        assert answer.status_code == 200 and answer.json()["error"]["code"] == code


def test_a_request_of_a_session_is_told_what_is_wrong():
    with client_of(serve(ARITHMETIC)) as client:
        session_id = ask(client, CREATE)["session_id"]
        assert ask(client, "nope")["code"] == -32601
        wrong = ask(client, "tools/call", session_id=session_id, name=3)
        assert wrong["code"] == -32602
        early = ask(client, "tools/call", session_id=session_id, name="submit", arguments={})
        assert early["code"] == -32000 and "reset first" in early["message"]
        assert ask(client, CLOSE, session_id=session_id)["closed"]
        wrong = ask(client, "tools/call", session_id=session_id, name="submit")
        assert "no session" in wrong["message"]


def test_a_session_that_a_request_opened_is_one_connections_at_a_time():
    served = serve(DB_BENCH)
    with client_of(served, serve(ARITHMETIC)) as client:
        session_id = ask(client, CREATE)["session_id"]
        address = f"/ws?session_id={session_id}"
        for wrong in (f"/{ARITHMETIC}{address}", "/ws?session_id=3"):
            with connect(client, wrong) as socket:
                assert socket.receive_json()["data"]["code"] == "SESSION_ERROR"
        for _ in range(2):  # what has been left is there still
            with connect(client, address) as socket:
                socket.send_json({"type": "reset", "data": {"seed": 4}})
                assert socket.receive_json()["type"] == "observation"
                assert num_sessions(client) == 1
                with connect(client, address) as second:
                    assert second.receive_json()["data"]["code"] == "SESSION_ERROR"
        with connect(client, address) as socket:
            socket.send_json({"type": "reset", "data": {"seed": 4}})
            socket.receive_json()
            assert ask(client, CLOSE, session_id=session_id)["closing"]
            params = {"name": "execute_sql", "arguments": {"sql": "SELECT 1"}}
            assert (
                "no session"
                in ask(client, "tools/call", session_id=session_id, **params)["message"]
            )
            said = {
                "type": "call_tool",
                "tool_name": "execute_sql",
                "arguments": {"sql": "SELECT 1"},
            }
            assert step(socket, said)["type"] == "observation"  # until it has left
            assert served.live
        wait_until(lambda: num_sessions(client) == 0 and not served.live)


@pytest.mark.slow
def test_sessions_of_requests_have_places_and_end_when_nothing_comes():
    served = serve(DB_BENCH, max_turns=20)
    with client_of(served, max_sessions=2, idle_s=2.0) as client:
        ids = [ask(client, CREATE)["session_id"] for _ in range(2)]
        assert "all 2 sessions are taken" in ask(client, CREATE)["message"]
        with pytest.raises(WebSocketDisconnect), connect(client):
            pass
        with connect(client, f"/ws?session_id={ids[0]}") as socket:
            socket.send_json({"type": "reset", "data": {"seed": 4}})
            socket.receive_json()
            for _ in range(8):  # a silent connection whose session is used goes on
                time.sleep(0.5)
                params = {"name": "execute_sql", "arguments": {"sql": "SELECT 1"}}
                assert "content" in ask(client, "tools/call", session_id=ids[0], **params)
            socket.send_json({"type": "state"})
            assert socket.receive_json()["type"] == "state"
            assert num_sessions(client) == 1  # the other one has gone
            assert "no session" in ask(client, "tools/call", session_id=ids[1])["message"]
        wait_until(lambda: num_sessions(client) == 0 and not served.live)


def test_a_close_ends_a_connection_and_not_the_session():
    with client_of(serve(ARITHMETIC)) as client:
        address = f"/ws?session_id={ask(client, CREATE)['session_id']}"
        for ending in ({"type": "close"}, "[]"):
            with connect(client, address) as socket:
                socket.send_json({"type": "reset", "data": {"seed": 4}})
                socket.receive_json()
                socket.send_json(ending)
        with connect(client, address) as socket:
            for _ in range(3):
                socket.send_json({"type": "state"})
                assert socket.receive_json()["type"] == "state"


@pytest.mark.parametrize("request_id", ["\ud800", 3, None])
@pytest.mark.parametrize("method", ["\ud800", "tools/list", "tools/call"])
def test_half_of_a_character_in_a_request_is_answered(request_id, method):
    said = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"name": "\ud800"}}
    with client_of(serve(ARITHMETIC)) as client, connect(client) as socket:
        answer = client.post("/mcp", content=json.dumps(said))
        assert answer.status_code == 200 and answer.json()["id"] == request_id
        socket.send_text(json.dumps({"type": "mcp", "data": said}))
        answer = socket.receive_json()
        assert answer["type"] == "mcp" and answer["data"]["id"] == request_id


@pytest.mark.slow
@pytest.mark.long
def test_one_who_asks_much_delays_no_other_and_is_not_taken_for_silent(tmp_path):
    words = (f"folder={tmp_path}", "--tools", "--idle-s", "3")
    with (
        env_server("served_env:Served/Toy-v0", *words, token=None) as server,
        httpx.Client(limits=httpx.Limits(max_connections=50)) as client,
    ):

        def post(method, **params):
            said = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return client.post(f"{server.url}/mcp", json=said, timeout=60).json()

        def call(action):
            act = {"name": "act", "arguments": {"action": action}}
            return post("tools/call", session_id=session_id, **act)

        session_id = post(CREATE)["result"]["session_id"]
        with ExitStack() as stack:
            address = f"{server.url.replace('http', 'ws')}/ws"
            own = stack.enter_context(websockets.connect(f"{address}?session_id={session_id}"))
            other = stack.enter_context(websockets.connect(address))
            for socket in (own, other):
                socket.send('{"type": "reset", "data": {"seed": 1}}')
                assert json.loads(socket.recv())["type"] == "observation"
            pool = stack.enter_context(ThreadPoolExecutor(40))
            waiting = [pool.submit(call, "sleep 8")]
            wait_until(lambda: any(path.read_text() == "sleep 8" for path in tmp_path.iterdir()))
            waiting += [pool.submit(call, "hello") for _ in range(39)]
            for _ in range(5):
                time.sleep(0.3)
                start_s = time.monotonic()
                other.send('{"type": "step", "data": {"text": "hello"}}')
                assert "You said" in other.recv()
                assert time.monotonic() - start_s < 4
            answers = [each.result() for each in waiting]
            assert sum("result" in answer for answer in answers) == 15  # and its WebSocket
            refused = [answer["error"]["message"] for answer in answers if "error" in answer]
            assert all("16 requests of this session wait" in text for text in refused)
            own.send('{"type": "state"}')  # silent for longer than it may be, but at work
            assert json.loads(own.recv())["type"] == "state"


@pytest.mark.slow
def test_a_held_session_opens_no_connections_that_many_share(tmp_path):
    with env_server(ARITHMETIC, "--tools", "--max-sessions", "2", token=None) as server:
        said = {"jsonrpc": "2.0", "id": 1, "method": CREATE}
        session_id = httpx.post(f"{server.url}/mcp", json=said).json()["result"]["session_id"]
        address = f"{server.url.replace('http', 'ws')}/many?session_id={session_id}"
        with ExitStack() as stack, pytest.raises(InvalidStatus, match="503"):
            for _ in range(3):
                stack.enter_context(websockets.connect(address))


@pytest.mark.slow
def test_a_stop_during_a_request_is_no_mistake(tmp_path):
    words = (f"folder={tmp_path}", "--tools")
    with (
        (tmp_path / "errors").open("w") as errors,
        env_server("served_env:Served/Toy-v0", *words, token=None, errors=errors) as server,
    ):
        said = {"jsonrpc": "2.0", "id": 1, "method": CREATE}
        session_id = httpx.post(f"{server.url}/mcp", json=said).json()["result"]["session_id"]
        address = f"{server.url.replace('http', 'ws')}/ws?session_id={session_id}"
        act = {"name": "act", "arguments": {"action": "sleep 15"}, "session_id": session_id}
        said = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": act}
        with websockets.connect(address) as socket, ThreadPoolExecutor(1) as pool:
            socket.send('{"type": "reset", "data": {"seed": 1}}')
            socket.recv()
            pool.submit(httpx.post, f"{server.url}/mcp", json=said, timeout=60)
            time.sleep(1)
            server.process.terminate()
            assert server.process.wait(40) == 0
    assert "Traceback" not in (tmp_path / "errors").read_text("utf-8")


def wait_until(is_so, limit_s=10.0):
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.slow
def test_openenvs_client_of_tools_plays_unmodified():
    from openenv.core.env_server.mcp_types import CallToolAction  # takes 3 s, in each worker
    from openenv.core.mcp_client import MCPToolClient

    own = gymnasium.make(DB_BENCH, **tool_kwargs(DB_BENCH, {})).unwrapped
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with env_server(DB_BENCH, "--tools") as server:
        with MCPToolClient(base_url=f"{server.url}/{DB_BENCH}", headers=headers).sync() as client:
            assert [tool.name for tool in client.list_tools()] == ["execute_sql", "submit"]
            for seed, door in ((1, "call_tool"), (2, "step")):
                result = client.reset(seed=seed)
                prompt, _ = own.reset(seed=seed)
                assert result.observation.text == prompt
                for action in own.oracle_actions(own.task):
                    call = own.get_tools().find_call(action)
                    if door == "call_tool":
                        client.call_tool(call.name, **call.arguments)
                    else:
                        said = CallToolAction(tool_name=call.name, arguments=call.arguments)
                        result = client.step(said)
                assert door == "call_tool" or (result.reward, result.done) == (1.0, True)
            assert server.metric("agentpeft_sessions") == 1
            outcomes = [
                line for line in server.get("metrics").splitlines() if "episodes_total{" in line
            ]
            assert len(outcomes) == 1 and 'outcome="success"' in outcomes[0]
            assert outcomes[0].endswith(" 2.0")
        wait_until(lambda: server.metric("agentpeft_sessions") == 0)
        assert server.metric("agentpeft_environments") == 0
    own.close()
