"""Many sessions over one connection, as the environments of a vector have them."""

import json
import pickle
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import gymnasium
import numpy as np
import psutil
import pytest
from env_server import TOKEN, env_server
from process_parts import wait_until
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from agentpeft.apps.serve.client.connection import Connection
from agentpeft.apps.serve.client.links import Links
from agentpeft.envs import EnvFault, SettingsError

ARITHMETIC, TOY = "AgentPEFT/Arithmetic-v0", "Served/Toy-v0"
IDLE_S, MAX_SESSIONS = 3.0, 8
SAY = {"type": "step", "data": {"text": "hello"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    words = [f"served_env:{TOY}", f"folder={tmp_path_factory.mktemp('toys')}", ARITHMETIC]
    limits = ["--max-sessions", str(MAX_SESSIONS), "--idle-s", str(IDLE_S)]
    with env_server(*words, "--allow-oracle", *limits) as started:
        yield started


def make_vec(server, num_envs, env_id=TOY, **kwargs):
    kwargs = {"url": server.url, "token": TOKEN, "env_id": env_id, **kwargs}
    return gymnasium.make_vec("AgentPEFT/Remote-v0", num_envs=num_envs, **kwargs)


def count_connections(server):
    found = psutil.Process().net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == server.port for each in found)


def wait_for_sessions(server, num_sessions):
    return wait_until(lambda: server.metric("agentpeft_sessions") == num_sessions, 5)


def wait_for_no_connection(server):
    """An idle one is seen to be unused at its second look, so after twice the idle time."""
    return wait_until(lambda: count_connections(server) == 0, 5 * IDLE_S)


@contextmanager
def link(server, env_id="", token=TOKEN):
    """Yields a bare connection for many sessions."""
    path = f"/{env_id}/many" if env_id else "/many"
    headers = {"Authorization": f"Bearer {token}"}
    url = f"ws://127.0.0.1:{server.port}{path}"
    with connect(url, additional_headers=headers, close_timeout=0.5) as websocket:
        yield websocket


def ask(websocket, number, kind, **data):
    """Returns the number, the mark and the data of the next frame, after a message."""
    websocket.send(f"{number} {json.dumps({'type': kind, 'data': data})}")
    return read(websocket)


def read(websocket):
    frame = websocket.recv(20)
    number = frame[: len(frame) - len(frame.lstrip("0123456789"))]
    mark, text = frame[len(number)], frame[len(number) + 1 :]
    return int(number), mark, json.loads(text)["data"] if mark == " " else text


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_vector_is_one_connection_and_plays_as_one_of_ones_own(server, mode):
    remote = make_vec(server, MAX_SESSIONS, ARITHMETIC, autoreset_mode=mode)
    own = gymnasium.make_vec(ARITHMETIC, num_envs=MAX_SESSIONS, autoreset_mode=mode)
    assert count_connections(server) == 1
    assert server.metric("agentpeft_sessions") == MAX_SESSIONS
    assert remote.reset(seed=5)[0] == own.reset(seed=5)[0]
    for _ in range(5):
        actions = [env.unwrapped.oracle_actions(env.unwrapped.task)[0] for env in own.envs]
        actions[0] = "Ü\ud800\n 7 + !"
        mine, theirs = remote.step(actions), own.step(actions)
        assert mine[0] == theirs[0]
        assert all(np.array_equal(*each) for each in zip(mine[1:4], theirs[1:4], strict=True))
    remote.close()
    own.close()
    assert wait_for_sessions(server, 0) and wait_for_no_connection(server)


def test_sessions_wait_side_by_side_and_one_s_fault_is_no_other_s(server):
    envs = make_vec(server, 4)
    envs.reset(seed=0)
    start_s = time.monotonic()
    envs.step(["sleep 2"] * 4)
    assert time.monotonic() - start_s < 7.5
    with pytest.raises(EnvFault, match="the toy is broken"):
        envs.step(["hello", "fault", "hello", "hello"])
    assert envs.envs[0].step("still")[0] == "You said still."
    assert envs.reset(seed=0)[1]["num_turns"].tolist() == [0] * 4
    assert envs.step(["big 300000"] * 4)[0] != envs.step(["hello"] * 4)[0]
    envs.close()


@pytest.mark.slow
def test_a_killed_server_is_a_fault_of_each_and_the_next_one_has_one_connection(tmp_path):
    words = f"served_env:{TOY}", f"folder={tmp_path}"
    with env_server(*words) as first:
        envs = make_vec(first, 3)
        prompts = envs.reset(seed=1)[0]
        first.process.kill()
        first.process.wait()
    with pytest.raises(EnvFault, match="the server is gone"):
        envs.step(["hello"] * 3)
    with pytest.raises(EnvFault, match="cannot connect"):
        envs.reset()
    with env_server(*words, "--port", str(first.port)) as second:
        assert envs.reset(seed=1)[0] == prompts
        assert envs.step(["hello"] * 3)[0] == ("You said hello.",) * 3
        assert count_connections(second) == 1
        copied = pickle.loads(pickle.dumps(envs.envs[0].unwrapped))
        assert copied.reset(seed=1)[0] == prompts[0]
        assert count_connections(second) == 2  # a copy shares nothing
        copied.close()
        envs.close()
        assert wait_for_sessions(second, 0)


@pytest.mark.slow
def test_limits_are_those_of_sessions(server):
    with pytest.raises(EnvFault, match=f"all {MAX_SESSIONS} sessions are taken"):
        make_vec(server, MAX_SESSIONS + 1)
    assert wait_for_sessions(server, 0)
    envs = make_vec(server, 2)
    envs.reset(seed=0)
    for _ in range(4):  # one of them is at work, so that the connection is not idle
        time.sleep(IDLE_S / 2)
        envs.envs[0].step("hello")
    with pytest.raises(EnvFault, match="the server is gone"):
        envs.envs[1].step("hello")
    assert envs.envs[0].step("still")[0] == "You said still."
    assert wait_for_no_connection(server)
    envs.reset(seed=0)
    envs.close()
    with pytest.raises(EnvFault, match="401"):
        make_vec(server, 1, token="wrong")
    with pytest.raises(SettingsError, match="no environment at this path"):
        make_vec(server, 2, "AgentPEFT/Nowhere-v0")


@pytest.mark.slow
def test_a_step_may_take_longer_than_a_client_may_be_silent(server):
    envs = make_vec(server, 2)
    envs.reset(seed=0)
    answers = envs.step([f"sleep {IDLE_S + 1}"] * 2)[0]
    assert answers == (f"You said sleep {IDLE_S + 1}.",) * 2
    envs.close()


def test_a_server_that_does_not_answer_is_waited_for_once():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        links, start_s = Links(), time.monotonic()

        def connect(_):
            with pytest.raises(EnvFault, match="cannot connect"):
                Connection.open(url.replace("http", "ws") + "/ws", None, None, 1.0, 1.0, links)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(connect, range(8)))
        assert time.monotonic() - start_s < 7.5


def test_a_client_that_only_begins_sessions_is_shown_out(server):
    with link(server) as websocket:
        with suppress(ConnectionClosed):
            for number in range(1000):
                websocket.send(f"{number}+")
        with pytest.raises(ConnectionClosedError):
            while True:
                websocket.recv(10)
    assert wait_for_sessions(server, 0)


def test_what_a_client_sends_amiss_harms_its_own_sessions_alone(server):
    with link(server) as mine, link(server) as other:
        for websocket in (mine, other):
            websocket.send("0+")
            assert ask(websocket, 0, "reset", seed=1)[:2] == (0, " ")
        mine.send(f"7 {json.dumps(SAY)}")  # never begun
        mine.send("0+")  # begun already
        mine.send("5+")
        assert ask(mine, 5, "reset", seed=2)[:2] == (5, " ")
        mine.send("3+")  # numbers grow
        mine.send(f"3 {json.dumps(SAY)}")
        assert ask(mine, 5, "step", text="hello")[2]["observation"]["text"] == "You said hello."
        sleep = json.dumps({"type": "step", "data": {"text": "sleep 0.02"}})
        for _ in range(100):
            mine.send(f"0 {sleep}")
        marks = set()
        while (frame := read(mine))[:2] != (0, "!"):  # a flood ends the session that it is for
            marks.add(frame[:2])
        assert marks <= {(0, " ")}
        assert ask(mine, 5, "step", text="still")[2]["observation"]["text"] == "You said still."
        mine.send("5!")
        assert read(mine)[:2] == (5, "!")
        mine.send("nonsense")
        with pytest.raises(ConnectionClosedError):
            mine.recv(5)
        answer = ask(other, 0, "step", text="hello")[2]
        assert answer["observation"]["text"] == "You said hello."
    assert wait_for_sessions(server, 0)
    with pytest.raises(InvalidStatus), link(server, token="wrong"):
        pass


def test_where_no_connection_is_shared_each_session_has_its_own(server, monkeypatch):
    monkeypatch.setattr("agentpeft.apps.serve.client.connection.SHARED_PATH", "nowhere")
    envs = make_vec(server, 3)
    assert count_connections(server) == 3
    envs.reset(seed=0)
    envs.close()
