"""What a server may answer to `Remote-v0`: anything at all, and never more than a fault of it."""

import json
import threading
from contextlib import contextmanager

import gymnasium
import pytest
from websockets.sync.server import serve

from agentpeft.apps.serve.client.messages import PROTOCOL, write_random_state
from agentpeft.envs import EnvFault, SettingsError, UnknownTaskError

DESCRIPTION = {
    "protocol": PROTOCOL,
    "env_id": "x",
    "max_turns": 3,
    "max_action_chars": 100,
    "max_observation_chars": 100,
    "tasks_name": None,
}
TASK = {"task_id": "a", "instruction": "Do it.", "skills": [], "content": "00"}
STEP = {
    "observation": {"text": "Well done."},
    "reward": 1.0,
    "done": True,
    "metadata": {"info": {"outcome": "success", "is_valid_action": True}},
}


class OddServer:
    """Answers as a server of one task does, but for what a test puts in place of an answer."""

    def __init__(self):
        self.odd = {}

    def answer(self, websocket):
        for text in websocket:
            message = json.loads(text)
            if message["type"] == "close":
                return
            asked = (message["data"].get("metadata") or {}).get("ask", message["type"])
            if asked in self.odd:
                websocket.send(self.odd[asked])
            else:
                websocket.send(write(self.usual(asked, message["data"])))

    def usual(self, asked, data):
        if asked in ("reset", "step"):
            return STEP
        answers = {"describe": DESCRIPTION, "oracle": {"actions": ["x"]}, "task": {"task": TASK}}
        if asked == "draw":
            answers["draw"] = {"task": TASK, "random_state": data["metadata"]["random_state"]}
        return {"metadata": answers.get(asked, {})}


def observe(data):
    """Returns an answer whose data are written already, as no JSON writer would."""
    return f'{{"type": "observation", "data": {data}}}'


def write(data):
    return observe(json.dumps(data))


@pytest.fixture(scope="module")
def server():
    odd = OddServer()
    with serve(odd.answer, "127.0.0.1", 0) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        odd.url = f"http://127.0.0.1:{listening.socket.getsockname()[1]}"
        yield odd
        listening.shutdown()


@contextmanager
def answering(server, **odd):
    server.odd = odd
    yield
    server.odd = {}


def play(server):
    env = gymnasium.make("agentpeft.envs:AgentPEFT/Remote-v0", url=server.url).unwrapped
    try:
        env.reset(seed=0)
        env.oracle_actions(env.task)
        return env.step("x")[1:3]
    finally:
        env.close()


def test_a_usual_server_is_played_with(server):
    assert play(server) == (1.0, True)


NESTED = "[" * 200_000 + "]" * 200_000
WHOLE = [
    *("", "{", "null", "3", "[]", '"x"', "{}", NESTED, '{"type": "observation"}', "9" * 5000),
    *(observe(data) for data in ("null", "[]", "3", NESTED)),
    '{"type": [], "data": {}}',
    json.dumps({"type": "error", "data": {"message": "x" * 500_000}}),
    json.dumps({"type": "error", "data": ["x" * 500_000]}),
    json.dumps({"type": "error", "data": {"message": f"SettingsError: {'x' * 500_000}"}}),
    json.dumps({"type": "error", "data": {"message": {"a": [None]}}}),
]
ODD = ["1" + "0" * 400, "-1" + "0" * 400, "1e999", "NaN", "-Infinity"]
ODD += ["null", "true", '"1.0"', '"nan"', "[]", "{}", "[1]", "9" * 4000, "{}", '{"a": {}}', '"x"']
PLACES = {
    "reward": '{"observation": {"text": ""}, "reward": ODD, "metadata": {"info": '
    '{"outcome": "success", "is_valid_action": true}}}',
    "observation": '{"observation": ODD, "reward": 1, "metadata": {"info": '
    '{"outcome": "success", "is_valid_action": true}}}',
    "text": '{"observation": {"text": ODD}, "reward": 1, "metadata": {"info": '
    '{"outcome": "success", "is_valid_action": true}}}',
    "metadata": '{"observation": {"text": ""}, "reward": 1, "metadata": ODD}',
    "info": '{"observation": {"text": ""}, "reward": 1, "metadata": {"info": ODD}}',
    "outcome": '{"observation": {"text": ""}, "reward": 1, "metadata": {"info": '
    '{"outcome": ODD, "is_valid_action": true}}}',
}
FAULTS = (EnvFault, SettingsError, UnknownTaskError, RuntimeError)


@pytest.mark.parametrize("asked", ["describe", "draw", "reset", "oracle", "step"])
def test_what_is_no_message_is_a_fault(server, asked):
    for text in WHOLE:
        with answering(server, **{asked: text}), pytest.raises(FAULTS) as caught:
            play(server)
        assert not isinstance(caught.value, RecursionError), text[:60]
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", ["pong", "", "Observation", None, 3, [], {}, "x" * 500_000])
@pytest.mark.parametrize("data", [{}, {"message": "no"}, None])
def test_a_message_of_another_type_is_a_fault_that_names_it(server, kind, data):
    with answering(server, step=json.dumps({"type": kind, "data": data})):
        with pytest.raises(EnvFault, match="answered a message of type") as caught:
            play(server)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("place", PLACES)
def test_an_odd_field_of_a_step_is_a_fault(server, place):
    harmless = {"text": {'"1.0"', '"nan"', '"x"'}}.get(place, set())
    for odd in set(ODD) - harmless:
        text = observe(PLACES[place].replace("ODD", odd))
        with answering(server, step=text), pytest.raises(EnvFault) as caught:
            play(server)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ("describe", DESCRIPTION),
        ("draw", {"task": TASK, "random_state": {}}),
        ("draw", {f"task.{name}": value for name, value in TASK.items()}),
        ("oracle", {"actions": ["x"]}),
    ],
)
def test_an_odd_or_missing_field_of_an_answer_is_a_fault(server, asked, fields):
    state = write_random_state(gymnasium.utils.seeding.np_random(0)[0])
    base = {"draw": {"task": TASK, "random_state": state}}.get(asked, fields)
    for name in fields:
        outer, _, inner = name.partition(".")
        for odd in ODD:
            whole = json.loads(json.dumps(base))
            (whole[outer] if inner else whole)[inner or outer] = "ODD"
            text = write({"metadata": whole}).replace('"ODD"', odd)
            with answering(server, **{asked: text}):
                try:
                    play(server)
                except FAULTS as error:
                    assert not isinstance(error, RecursionError)
