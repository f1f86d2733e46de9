"""A server of environments, its clients, and what either may do to the other."""

import copy
import gc
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import gymnasium
import numpy as np
import pytest
from env_server import SERVE, TOKEN, ask, env_server, session
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from playwright.sync_api import sync_playwright
from process_parts import children_of, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus

import agentpeft.envs
from agentpeft.apps.serve.client.servers import Servers
from agentpeft.apps.serve.serve import main
from agentpeft.envs import (
    EnvFault,
    Outcome,
    SettingsError,
    Taskset,
    TextVectorEnv,
    UnknownTaskError,
    check_text_env,
)
from agentpeft.policies.rollout.environments import make_environment
from agentpeft.policies.rollout.play import reward_for

ARITHMETIC, TOY = "AgentPEFT/Arithmetic-v0", "Served/Toy-v0"
IDLE_S, MAX_SESSIONS, MAX_KIB, RATE = 1.5, 8, 800, 2000
LIMITS = ["--idle-s", str(IDLE_S), "--max-sessions", str(MAX_SESSIONS)]
LIMITS += ["--max-message-kib", str(MAX_KIB), "--max-rate", str(RATE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where each living toy has a file."""
    return tmp_path_factory.mktemp("toys")


@pytest.fixture(scope="module")
def server(folder):
    """A server with a token, limits and an oracle."""
    words = [ARITHMETIC, "AgentPEFT/DBBench-v0", f"served_env:{TOY}", f"folder={folder}"]
    with env_server(*words, "--allow-oracle", *LIMITS) as started:
        yield started


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    """A server without a token, for clients that know of none; its toy is the first."""
    words = [f"served_env:{TOY}", f"folder={tmp_path_factory.mktemp('open')}", ARITHMETIC]
    with env_server(*words, "--client-kwargs", "*", token=None) as started:
        yield started


def make(server, env_id=ARITHMETIC, **kwargs):
    kwargs = {"url": server.url, "token": TOKEN, **kwargs}
    return gymnasium.make("AgentPEFT/Remote-v0", env_id=env_id, **kwargs).unwrapped


@pytest.mark.parametrize("env_id", [ARITHMETIC, "AgentPEFT/DBBench-v0"])
def test_a_remote_environment_does_what_one_of_ones_own_does(server, env_id):
    remote, own = make(server, env_id, split="test"), gymnasium.make(env_id, split="test").unwrapped
    assert remote.action_space == own.action_space
    assert remote.observation_space == own.observation_space
    for seed in (3, None, None):
        assert remote.reset(seed=seed) == own.reset(seed=seed)
        actions = list(own.oracle_actions(own.task))
        assert remote.oracle_actions(remote.task) == actions
        for action in actions:
            assert remote.step(action) == own.step(action)
    options = {"task": own.task}  # a task of its own, if the server has the same
    assert remote.reset(options=options) == own.reset(options=options)
    assert remote.reset(options={"task": own.task.task_id}) == own.reset(options=options)
    assert remote.step("\ud800 \0 'ü\U0001f600") == own.step("\ud800 \0 'ü\U0001f600")
    with pytest.raises(UnknownTaskError):
        remote.reset(options={"task": "nowhere"})
    with pytest.raises(UnknownTaskError, match="another one on the server"):
        remote.reset(options={"task": replace(own.task, instruction="other")})
    remote.close()
    own.close()
    with pytest.raises(ClosedEnvironmentError):
        remote.reset()


def test_a_remote_environment_keeps_the_suites_contract(server):
    env = make(server)
    check_text_env(env, num_tasks=1)
    env.close()


def test_a_task_source_outlives_its_environment_and_draws_what_the_own_one_draws(server):
    env, own = make(server), gymnasium.make(ARITHMETIC).unwrapped
    source = env.task_source
    env.close()
    mine, theirs = np.random.default_rng([7, 7]), np.random.default_rng([7, 7])
    for _ in range(2):
        task = own.task_source.draw(mine)
        drawn = source.draw(theirs)
        assert (drawn.task_id, drawn.instruction, drawn.skills) == (
            task.task_id,
            task.instruction,
            task.skills,
        )
    assert source.get(task.task_id) == drawn


@pytest.mark.slow
def test_a_taskset_is_that_of_the_server(tmp_path):
    data = tmp_path / "tasks.jsonl"
    rows = [{"question": f"How many are 2 and {n}?", "answer": f"#### {n + 2}"} for n in range(3)]
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with env_server("AgentPEFT/GSM8K-v0", f"data={data}", "--allow-oracle", token=None) as files:
        env = make(files, None, token=None)
        own = gymnasium.make("AgentPEFT/GSM8K-v0", data=str(data)).unwrapped
        assert isinstance(env.task_source, Taskset) and len(env.task_source) == 3
        ids = [task.task_id for task in own.task_source.shuffle(5)]
        assert [task.task_id for task in env.task_source.shuffle(5)] == ids
        assert env.reset(seed=4) == own.reset(seed=4)
        env.close()


def test_many_environments_play_side_by_side_and_leave_nothing(server):
    venv = gymnasium.make_vec(
        "AgentPEFT/Remote-v0", num_envs=4, url=server.url, token=TOKEN, env_id=ARITHMETIC
    )
    assert isinstance(venv, TextVectorEnv)
    own = gymnasium.make_vec(ARITHMETIC, num_envs=4)
    assert venv.reset(seed=1)[0] == own.reset(seed=1)[0]
    actions = [env.unwrapped.oracle_actions(env.unwrapped.task)[0] for env in own.envs]
    assert venv.step(actions)[4]["is_success"].all()
    assert server.metric("agentpeft_sessions") == 4
    venv.close()
    assert wait_until(lambda: server.metric("agentpeft_sessions") == 0)
    assert wait_until(lambda: server.metric("agentpeft_environments") == 0)


def test_a_copy_has_a_session_of_its_own(server):
    env = make(server, TOY)
    env.reset(seed=1)
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        with pytest.raises(ResetNeeded):
            other.step("hello")
        other.reset()
        assert other.step("hello")[0] == "You said hello."
        other.close()
    assert env.step("hello")[0] == "You said hello."
    env.close()


def test_an_invalid_action_that_ends_nothing_is_told_as_one(server):
    env = make(server, TOY)
    env.reset()
    info = env.step("nonsense")[4]
    assert not info["is_valid_action"] and info["outcome"] is Outcome.ONGOING
    env.close()


def test_an_action_of_any_length_is_answered_as_by_an_environment_of_ones_own(server):
    remote, own = make(server), gymnasium.make(ARITHMETIC).unwrapped
    for action in ("\0" * 65_536, "\U0001f600" * 65_537, "x" * 5_000_000):
        assert remote.reset(seed=0) == own.reset(seed=0)
        assert remote.step(action) == own.step(action)
    remote.close()


def test_what_an_episode_cut_by_the_caller_earns_is_the_servers_word(open_server):
    env = make(open_server, ARITHMETIC, token=None, reward={"context_limit": -0.75}, max_turns=3)
    env.reset(seed=0)
    assert env.step("1")[1] == 0.0
    assert reward_for(env, Outcome.CONTEXT_LIMIT) == -0.75
    env.close()


def test_a_client_that_was_not_written_here_plays_and_sees_nothing_but_text(server):
    import agentpeft.apps.serve.openenv_types  # noqa: F401 (or OpenEnv would import Gradio)

    # isort: split
    from openenv.core.generic_client import GenericEnvClient

    headers = {"Authorization": f"Bearer {TOKEN}"}
    client = GenericEnvClient(base_url=f"{server.url}/{ARITHMETIC}", headers=headers).sync()
    own = gymnasium.make(ARITHMETIC).unwrapped
    with client:
        result = client.reset(seed=5)
        assert result.observation == {"text": own.reset(seed=5)[0], "metadata": {}}
        result = client.step({"text": int(own.oracle_actions(own.task)[0])})  # a JSON number
        assert (result.observation, result.reward, result.done) == (
            {"text": "Correct.", "metadata": {}},
            1.0,
            True,
        )
        assert client.state() == {"episode_id": None, "step_count": 1}


def test_openenvs_own_validator_is_content(open_server):
    from openenv.cli._validation import validate_running_environment

    for path in ("", f"/{TOY}", f"/{ARITHMETIC}"):
        report = validate_running_environment(open_server.url + path)
        assert report["passed"] and report["mode"] == "simulation", report["criteria"]


def test_over_http_a_step_without_a_session_is_refused_in_words(open_server):
    body = json.dumps({"action": {"text": "1"}}).encode()
    request = Request(f"{open_server.url}/step", body, {"Content-Type": "application/json"})
    with pytest.raises(HTTPError) as error:
        urlopen(request)
    assert error.value.code == 409
    assert "play over the WebSocket" in json.loads(error.value.read())["detail"]
    request = Request(f"{open_server.url}/reset", b"{}", {"Content-Type": "application/json"})
    assert "Do as you like" in json.loads(urlopen(request).read())["observation"]["text"]
    assert json.loads(open_server.get("environments", None)) == {"environments": [TOY, ARITHMETIC]}
    assert wait_until(lambda: open_server.metric("agentpeft_environments") == 0)


def test_the_oracle_is_shown_only_where_the_server_was_told_to(open_server):
    env = make(open_server, token=None)
    env.reset()
    with pytest.raises(SettingsError, match="--allow-oracle"):
        env.oracle_actions(env.task)
    env.close()


# What clients do. Each is done beside an episode that goes on.


def wrong_token(server):
    for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x", "ü"):
        with (
            pytest.raises((InvalidStatus, UnicodeEncodeError)) as error,
            session(server, token=token),
        ):
            pass
        assert not isinstance(error.value, InvalidStatus) or error.value.response.status_code == 401
    for path in ("metrics", "metadata", "schema", "environments", "openapi.json"):
        with pytest.raises(HTTPError, match="401"):
            server.get(path, None)
    assert "healthy" in server.get("health", None)


def token_as_a_browser_sends_it(server):
    with session(server, token=None, subprotocols=["agentpeft", TOKEN]) as websocket:
        assert websocket.subprotocol == "agentpeft"
        assert ask(websocket, "reset")["type"] == "observation"
    with (
        pytest.raises(InvalidStatus),
        session(server, token=None, subprotocols=["agentpeft", "wrong"]),
    ):
        pass


def page_of_another_site(server):
    with (
        pytest.raises(InvalidStatus) as error,
        session(server, headers={"Origin": "http://elsewhere.example"}),
    ):
        pass
    assert error.value.response.status_code == 403


def unknown_path(server):
    with pytest.raises(InvalidStatus) as error, session(server, "AgentPEFT/Nothing-v0"):
        pass
    assert error.value.response.status_code == 404 and b"served: " in error.value.response.body


WRONG_MESSAGES = {
    "{": "INVALID_JSON",
    "[" * 100_000: "INVALID_JSON",
    f'{{"type": {"1" * 10_000}}}': "INVALID_JSON",
    '{"type": "dance"}': "UNKNOWN_TYPE",
    "{}": "UNKNOWN_TYPE",
    '{"type": "step", "data": {}}': "VALIDATION_ERROR",
    '{"type": "step", "data": {"text": ["x"]}}': "VALIDATION_ERROR",
    '{"type": "step", "data": {"text": "x", "more": 1}}': "VALIDATION_ERROR",
    '{"type": "step", "data": {"text": "too early"}}': "EXECUTION_ERROR",
    '{"type": "step", "data": {"text": "", "metadata": {"ask": "secrets"}}}': "EXECUTION_ERROR",
    '{"type": "step", "data": {"text": "", "metadata": {"ask": 3}}}': "EXECUTION_ERROR",
    '{"type": "step", "data": {"text": "", "metadata": {"ask": "draw", '
    '"random_state": {"state": 1}}}}': "EXECUTION_ERROR",
    '{"type": "reset", "data": {"colour": "red"}}': "VALIDATION_ERROR",
    '{"type": "reset", "data": {"seed": "x"}}': "EXECUTION_ERROR",
    '{"type": "reset", "data": {"seed": -1}}': "EXECUTION_ERROR",
    '{"type": "reset", "data": {"task_id": "nowhere"}}': "EXECUTION_ERROR",
    '{"type": "reset", "data": {"env_kwargs": {"folder": "/"}}}': "EXECUTION_ERROR",
}
"""What no client should send, and OpenEnv's code for it, or ours for JSON too deep or too large."""


def wrong_messages(server):
    with session(server, TOY) as websocket:
        for text, code in WRONG_MESSAGES.items():
            websocket.send(text)
            answer = json.loads(websocket.recv(10))
            assert (answer["type"], answer["data"]["code"]) == ("error", code), (text, answer)
        assert ask(websocket, "reset")["type"] == "observation"  # the session is as good as new
    for wrong in ("[1]", b"\xff\xfe"):
        with session(server, TOY) as websocket:
            websocket.send(wrong)
            assert json.loads(websocket.recv(10))["data"]["code"] == "SESSION_ERROR"
            with pytest.raises(ConnectionClosed):
                websocket.recv(10)


def no_websocket_at_all(server):
    key = f"Host: x\r\nAuthorization: Bearer {TOKEN}"
    for wrong in ("\0" * 1000, f"GET /ws HTTP/1.1\r\n{key}\r\n\r\n", "BREW / HTCPCP/1.0\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            client.sendall(wrong.encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 40")


def oversized_message(server):
    with session(server, TOY) as websocket:
        ask(websocket, "reset")
        with pytest.raises(ConnectionClosed) as closed:
            ask(websocket, "step", text="x" * (MAX_KIB * 1024))
        assert closed.value.rcvd.code == 1009
    request = Request(f"{server.url}/reset", b" " * (MAX_KIB * 1024 + 1))
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with pytest.raises(HTTPError, match="413"):
        urlopen(request)


CLIENT = """
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1], additional_headers={"Authorization": f"Bearer {sys.argv[2]}"}) as ws:
    ws.send(json.dumps({"type": "reset", "data": {}}))
    ws.recv()
    ws.send(json.dumps({"type": "step", "data": {"text": "sleep 0.5"}}))
    print("playing", flush=True)
    ws.recv()
    ws.recv()
"""


def client_killed(server):
    """In the middle of a step, and so without a goodbye."""
    command = [sys.executable, "-c", CLIENT, f"ws://127.0.0.1:{server.port}/{TOY}/ws", TOKEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout.readline() == "playing\n"
        assert server.metric("agentpeft_sessions") == 2
        client.kill()


def half_open(server):
    """A client that neither reads, nor answers pings, nor says goodbye."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(
        f"GET /{TOY}/ws HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    )
    assert b"101" in client.recv(1000)
    assert wait_until(lambda: server.metric("agentpeft_sessions") == 1)
    client.close()


def silent_client(server):
    with session(server, TOY) as websocket:
        ask(websocket, "reset")
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(10 * IDLE_S)
        assert closed.value.rcvd.code == 4408 and "no message for" in closed.value.rcvd.reason


def slow_client(server):
    """Asks for much and reads none of it."""
    with session(server, TOY, max_queue=1, ping_interval=None) as websocket:
        ask(websocket, "reset")
        for _ in range(100):
            websocket.send(json.dumps({"type": "step", "data": {"text": "big 200000"}}))
        assert wait_until(lambda: server.metric("agentpeft_sessions") == 1)


def flood(server):
    """From another address, as fast as it can."""
    num = 2 * RATE
    with session(server, TOY, address="127.0.0.2") as websocket:
        start_s = time.monotonic()
        sending = Thread(target=lambda: [websocket.send('{"type": "state"}') for _ in range(num)])
        sending.start()
        for _ in range(num):
            assert json.loads(websocket.recv(20))["type"] == "state"
        sending.join()
        assert time.monotonic() - start_s > 0.9 * (num - RATE) / RATE


def faults(server):
    with session(server, TOY) as websocket:
        ask(websocket, "reset")
        answer = ask(websocket, "step", text="fault")
        assert answer["data"]["message"] == "EnvFault: the toy is broken"
        assert "ResetNeeded" in ask(websocket, "step", text="hello")["data"]["message"]
        ask(websocket, "reset")
        answer = ask(websocket, "step", text="bug")
        assert "ZeroDivisionError" in answer["data"]["message"]
        assert ask(websocket, "reset")["type"] == "observation"


def slow_step(server):
    with session(server, TOY) as websocket:
        ask(websocket, "reset")
        websocket.send(json.dumps({"type": "step", "data": {"text": "sleep 5"}}))
        start_s = time.monotonic()
        with session(server, TOY) as other:
            ask(other, "reset")
            for _ in range(20):
                ask(other, "step", text="hello")
        assert time.monotonic() - start_s < 4.5
        assert "You said sleep" in websocket.recv(10)


def too_many_sessions(server):
    with ExitStack() as sessions:
        for _ in range(MAX_SESSIONS - 1):  # beside the one of the test
            sessions.enter_context(session(server, TOY))
        with pytest.raises(InvalidStatus) as error, session(server, TOY):
            pass
        assert error.value.response.status_code == 503
        request = Request(f"{server.url}/reset", b"{}")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with pytest.raises(HTTPError, match="503"):
            urlopen(request)
        with pytest.raises(EnvFault, match="8 sessions are taken"):
            make(server, TOY)


DISTURBANCES = (
    wrong_token, token_as_a_browser_sends_it, page_of_another_site, unknown_path, wrong_messages,
    no_websocket_at_all, oversized_message, client_killed, half_open, silent_client, slow_client,
    flood, faults, slow_step, too_many_sessions,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda function: function.__name__)
def test_no_client_loses_another_one_its_session(server, folder, disturb):
    bystander = make(server, ARITHMETIC)
    bystander.reset(seed=1)
    is_over, longest_s = False, 0.0

    def stay() -> None:
        nonlocal longest_s
        while not is_over:
            start_s = time.monotonic()
            bystander.task_source.get("addition:1+1:plain")  # a question keeps the session
            longest_s = max(longest_s, time.monotonic() - start_s)
            time.sleep(0.1)

    talking = Thread(target=stay)
    talking.start()
    try:
        disturb(server)
        assert wait_until(lambda: server.metric("agentpeft_sessions") == 1)
        assert wait_until(lambda: not list(folder.iterdir()))
    finally:
        is_over = True
        talking.join()
    action = bystander.oracle_actions(bystander.task)[0]
    assert bystander.step(action)[4]["is_success"]
    assert longest_s < 2.5
    bystander.close()
    assert wait_until(lambda: server.metric("agentpeft_environments") == 0)


def test_sessions_are_dealt_by_weight():
    servers = Servers({"http://a:1": 3, "https://b:2/base/": 1}, "ws")
    orders = [servers.in_order() for _ in range(2000)]
    assert set(map(tuple, orders)) == {
        ("ws://a:1/ws", "wss://b:2/base/ws"),
        ("wss://b:2/base/ws", "ws://a:1/ws"),
    }
    first = sum(order[0] == "ws://a:1/ws" for order in orders)
    assert 1500 - 120 < first < 1500 + 120  # six standard deviations


# What a server does.


def test_a_lost_client_frees_its_sandbox(any_sandbox):
    with env_server("AgentPEFT/OSInteraction-v0") as server:
        before = children_of(server.process.pid)
        with session(server) as lost, session(server) as other:
            prompts = [ask(each, "reset", seed=3)["data"] for each in (lost, other)]
            assert prompts[0] == prompts[1]
            assert len(children_of(server.process.pid)) >= len(before) + 2
            lost.socket.shutdown(socket.SHUT_RDWR)
            assert wait_until(lambda: server.metric("agentpeft_environments") == 1)
            assert (
                ask(other, "step", text="Act: bash\n\n```bash\necho here\n```")["type"] != "error"
            )
        assert wait_until(lambda: children_of(server.process.pid) == before)


def test_after_a_killed_server_the_episode_is_a_fault_and_the_next_one_begins_elsewhere(
    server, tmp_path
):
    words = f"served_env:{TOY}", f"folder={tmp_path}"
    with env_server(*words) as first:
        env = make(first, TOY, url={first.url: 1e9, server.url: 1e-9})
        alone = make(first, TOY)
        for each in (env, alone):
            each.reset(seed=1)
            assert each.step("hello")[0] == "You said hello."
        first.process.kill()
        first.process.wait()
    with pytest.raises(EnvFault, match="the server is gone"):
        env.step("hello")
    with pytest.raises(ResetNeeded):
        env.step("hello")
    assert server.metric("agentpeft_sessions") == 0
    prompt, info = env.reset(seed=1)
    assert info["num_turns"] == 0 and server.metric("agentpeft_sessions") == 1
    env.close()
    with pytest.raises(EnvFault, match="cannot connect"):
        alone.reset()
    with env_server(*words, "--port", str(first.port)):
        with pytest.raises(ResetNeeded):  # never gone on with
            alone.step("hello")
        assert alone.reset(seed=1) == (prompt, info)
        alone.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_closes_environments_and_ends_well(folder, number):
    with env_server(f"served_env:{TOY}", f"folder={folder}") as server:
        envs = [make(server, TOY) for _ in range(3)]
        for env in envs:
            env.reset()
        assert len(list(folder.iterdir())) == 3
        with ThreadPoolExecutor(1) as thread:
            stepping = thread.submit(envs[0].step, "sleep 1")
            time.sleep(0.2)
            server.process.send_signal(number)
            assert server.process.wait(20) == 0
        assert isinstance(stepping.exception(), EnvFault)
        assert not list(folder.iterdir())
        with pytest.raises(EnvFault, match="server is gone"):
            envs[1].step("hello")
        for env in envs:
            env.close()


@pytest.mark.long
@pytest.mark.slow
def test_a_step_that_never_ends_does_not_keep_a_server_from_ending(folder):
    with env_server(f"served_env:{TOY}", f"folder={folder}") as server, session(server) as client:
        ask(client, "reset")
        client.send(json.dumps({"type": "step", "data": {"text": "sleep 200"}}))
        time.sleep(0.2)
        server.process.terminate()
        assert server.process.wait(60) == 0
    for path in folder.iterdir():  # what the step holds
        path.unlink()


@pytest.mark.slow
def test_tls_by_files_is_checked_by_the_client(tmp_path, capsys):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = "subjectAltName=IP:127.0.0.1"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext {names}"
    subprocess.run(
        [*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    with env_server(ARITHMETIC, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        assert server.url.startswith("https://")
        env = make(server, ca_file=str(cert))
        env.reset()
        assert env.step("1")[2]
        env.close()
        with pytest.raises(EnvFault, match="certificate"):
            make(server)
        for wrong in (tmp_path / "nowhere.pem", Path(__file__)):
            with pytest.raises(SettingsError, match="no certificates"):
                make(server, ca_file=str(wrong))
    assert main(["--tls-cert", __file__, "--tls-key", str(key)]) == 2
    assert "expected a certificate and its key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    {
        "--host 0.0.0.0": "--host 0.0.0.0 lets others in: set --token or --token-file",
        "--host nowhere": "--host must be an IP address or localhost, got 'nowhere'",
        "--port 70000": "--port must be from 0 to 65535, got 70000",
        "AgentPEFT/Arithmatic-v0": "unknown environment 'AgentPEFT/Arithmatic-v0'; did you mean",
        "split=test": "'split=test' stands before any environment; first name its id",
        f"{ARITHMETIC} {ARITHMETIC}": "is named twice; start another server for it",
        f"{ARITHMETIC} colour=red --port 0": "unknown setting 'colour'",
        "CartPole-v1 --port 0": "environment 'CartPole-v1' is no TextEnv",
        "--tls-cert x.pem": "TLS needs both --tls-cert and --tls-key",
        f"{ARITHMETIC} --max-message-kib 400 --port 0": "max_action_chars=65536 takes --max",
        "--max-sessions 0": "--max-sessions must be an integer >= 1, got 0",
        "--idle-s 0": "--idle-s must be a number > 0, got 0.0",
        "--max-rate -1": "--max-rate must be a number > 0, got -1.0",
        "--token a/b": "a token must have letters, digits and . _ ~ + - alone",
    }.items(),
)
def test_wrong_words_are_one_line_and_status_2(words, problem, capsys):
    assert main(words.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and problem in lines[0]


def test_a_file_that_holds_no_tokens_is_one_line_and_status_2(tmp_path, capsys):
    path = tmp_path / "tokens"
    path.write_bytes(b"\xff\xfe\n")
    assert main(["--token-file", str(path)]) == 2
    assert "expected a token in each line, got other bytes" in capsys.readouterr().err


def test_what_a_server_gives_an_environment_is_told_to_no_client():
    class KeyedEnv(gymnasium.Env):
        def __init__(self, key):
            self.key = key

    gymnasium.register("Tests/Keyed-v0", KeyedEnv)
    with pytest.raises(SettingsError, match="unexpected keyword argument 'split'") as error:
        make_environment("Tests/Keyed-v0", {"key": "sk-secret", "split": "test"})
    assert "sk-secret" not in str(error.value)


@pytest.mark.slow
def test_requests_whose_bodies_are_slow_count_as_sessions():
    head = b"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 2\r\n\r\n"
    with (
        env_server(ARITHMETIC, "--max-sessions", "2", token=None) as server,
        ExitStack() as stack,
    ):
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(6)
        ]
        for each in sockets:
            each.sendall(head)
        assert wait_until(lambda: server.metric("agentpeft_sessions") == 2)
        for each in sockets:
            each.sendall(b"{}")
        statuses = sorted(each.recv(20).split()[1] for each in sockets)
        assert statuses == [b"200"] * 2 + [b"503"] * 4


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "elsewhere.example"},
        {"Host": "elsewhere.example", "Origin": "http://elsewhere.example"},
        {"Origin": "http://["},
    ],
)
def test_without_tokens_a_server_is_called_localhost_alone(open_server, headers):
    with pytest.raises(HTTPError) as error:
        urlopen(Request(f"{open_server.url}/environments", headers=headers))
    assert error.value.code == 403


def test_an_environment_that_nobody_holds_ends_its_session(server):
    env = make(server)
    env.reset(seed=1)
    assert server.metric("agentpeft_sessions") == 1
    del env
    gc.collect()
    assert wait_until(lambda: server.metric("agentpeft_sessions") == 0)


@pytest.mark.slow
def test_of_two_servers_on_one_port_one_says_that_it_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [*SERVE, ARITHMETIC, "--port", port]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert wait_until(lambda: any(each.poll() is not None for each in started))
    (lost,) = [each for each in started if each.poll() is not None]
    assert lost.returncode == 1 and "already in use" in lost.communicate()[1]
    (other,) = [each for each in started if each is not lost]
    other.terminate()
    assert json.loads(other.communicate(timeout=30)[0])["url"].endswith(port)


def test_a_port_that_is_taken_is_one_line_and_status_1(server, capsys):
    assert main([ARITHMETIC, "--port", str(server.port)]) == 1
    line = f"127.0.0.1:{server.port}: Address already in use; --port 0 takes a free one"
    assert line in capsys.readouterr().err


WRONG_CLIENTS = {
    "no address": ({"url": "127.0.0.1:80"}, SettingsError, "url must be like http://host:8000"),
    "half an address": ({"url": "http://["}, SettingsError, "url must be like http://host:8000"),
    "no port": ({"url": "http://x:99999"}, SettingsError, "url must be like http://host:8000"),
    "a list in a list": ({"url": [["http://x"]]}, SettingsError, "a list or a mapping"),
    "no name": ({"url": f"http://{'x' * 70}.invalid"}, SettingsError, "cannot connect"),
    "no servers": ({"url": []}, SettingsError, "url names no server"),
    "no weight": ({"url": {"http://x": 0}}, SettingsError, "the weight of a url must be > 0"),
    "nobody there": ({"url": "http://127.0.0.1:1"}, EnvFault, "cannot connect"),
    "wrong token": ({"token": "wrong"}, EnvFault, "401: no or a wrong token"),
    "no environment": ({"env_id": "AgentPEFT/X-v0"}, SettingsError, "404: no environment at this"),
    "no id": ({"env_id": 3}, SettingsError, "env_id must be a text or None, got 3"),
    "what no client may set": (
        {"num_digits": 3}, SettingsError, "lets no client set 'num_digits' (it does: split)",
    ),
    "a wrong value": ({"split": "half"}, SettingsError, "split must be 'train', 'test' or None"),
    "no JSON": ({"split": {1, 2}}, SettingsError, "arguments for a server must be JSON"),
    "no time": ({"timeout_s": 0}, SettingsError, "timeout_s must be a number > 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_CLIENTS)
def test_a_client_that_cannot_be_made_says_why(server, case):
    kwargs, kind, problem = WRONG_CLIENTS[case]
    with pytest.raises(kind) as error:
        make(server, **{"env_id": ARITHMETIC, **kwargs})
    assert problem in str(error.value)
    assert wait_until(lambda: server.metric("agentpeft_sessions") == 0)


def test_a_session_that_was_closed_between_episodes_is_not_missed(server):
    env = make(server)
    env.reset(seed=0)
    assert env.step("1")[2]
    assert wait_until(lambda: server.metric("agentpeft_sessions") == 0)
    assert env.reset(seed=1)[1]["num_turns"] == 0
    env.close()


def test_a_step_over_the_clients_time_is_a_fault_and_the_next_reset_works(server):
    env = make(server, TOY, timeout_s=0.5)
    env.reset()
    with pytest.raises(EnvFault, match=r"more than 0\.5 s"):
        env.step("sleep 1")
    env.reset()
    assert env.step("hello")[0] == "You said hello."
    env.close()


def test_an_episode_is_played_by_hand_on_the_servers_page(server, chromium):
    own = gymnasium.make(ARITHMETIC).unwrapped
    prompt = own.reset(seed=5)[0]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_function("document.body.innerText.includes('needs a token')")
        page.fill("#token", TOKEN)
        page.press("#token", "Tab")
        page.wait_for_selector(f"#environment option:text-is('{ARITHMETIC}')", state="attached")
        page.fill("#seed", "5")
        page.click("#begin button")
        page.wait_for_selector("#text:enabled")
        assert page.inner_text("#transcript p:last-child") == prompt
        page.fill("#text", own.oracle_actions(own.task)[0])
        page.click("#send")
        page.wait_for_function("document.body.innerText.includes('it earned 1.')")
        page.wait_for_selector("h2:text-is('the oracle')")  # plays the same task after you
        columns = page.locator("#players section").all_inner_texts()
        assert [text.splitlines()[0] for text in columns] == ["You", "the oracle"]
        for text in columns:
            assert text.endswith("Correct.\n\nsuccess in 1 turn, return 1")
        page.click("#begin button")  # begins anew, alone
        page.wait_for_selector("#text:enabled")
        assert page.locator("#players section").count() == 1
        browser.close()


def test_the_token_may_come_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_TOKEN", TOKEN)
    env = make(server, token=None)
    env.close()


def test_importing_the_suite_imports_no_client():
    code = "import sys, agentpeft.envs; assert not {'websockets', 'openenv'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
    assert Path(agentpeft.envs.__file__).name == "__init__.py"
