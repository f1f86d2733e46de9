"""Programs of users as the agent: what they are served, what is learnt, and what they may do."""

import asyncio
import json
import shlex
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import anthropic
import httpx
import numpy as np
import pytest
import word_env
import word_runs
from chat_templates import TOOL_TEMPLATES, make_tokenizer
from gateway_parts import play_turns, pool_of
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from openai import OpenAI
from process_parts import seconds_until_gone, wait_until
from ray_cluster import free_ports
from tiny_run import TINY

from agentpeft.apps.gateway import open_episode
from agentpeft.apps.gateway.conversations import Conversations
from agentpeft.envs import Outcome, SettingsError
from agentpeft.launch.cli import main
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.outside_agent import make_agent
from agentpeft.policies.engines.player import Player, make_player
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest

CLASS = "agentpeft.apps.gateway.agent:Gateway"


def make_settings(*overrides, **agent):
    values = {"class": CLASS, **agent} if agent else {}
    said = [f"env_runners.agent.{name}={json.dumps(value)}" for name, value in values.items()]
    short = ("env_runners.max_new_tokens=8", "num_threads=1")
    return word_runs.make_settings(*short, *overrides, *said)


@pytest.fixture
def sample(small_base):
    """Plays groups of `size` by a function, a command, or (without either) our own loop."""
    pools, runners = [], []

    def run(play, *overrides, size=2, script=None, num_groups=1, mode="train", **agent):
        word_env.HEARD.clear()
        word_env.FAULTS.clear()
        if callable(play):
            pools.append(pool_of(play))
            agent["url"] = [pools[-1].__enter__()]
        elif play is not None:
            agent["command"] = play
        settings = make_settings(*overrides, **agent)
        make_engine = script and (lambda s, b, chat: ScriptedEngine(chat, script))
        runner = EnvRunner(settings, make_player(settings, small_base, make_engine))
        runners.append(runner)
        if script is None:
            runner.load_adapter(make_version(0, "run", {}, 1.0))
        requests = [GroupRequest(number, size, mode) for number in range(num_groups)]
        return runner.sample(requests)

    yield run
    for runner in runners:
        runner.close()
    for pool in pools:
        pool.__exit__(None, None, None)


def say_turn(session, turn):
    return f"turn {turn}"


def outcomes(report):
    return [record.outcome for record in report.records]


def test_a_program_plays_the_tokens_of_our_own_loop(sample):
    settings = ("deterministic=true", 'environment.kwargs.reward="db"')
    ours, _ = sample(None, *settings, num_groups=2, size=3)
    theirs, report = sample(play_turns, *settings, num_groups=2, size=3)
    check_equal(ours, theirs)
    assert [len(record.messages) for record in report.records] == [9] * 6
    assert report.records[0].num_turns == 4


def test_what_is_printed_is_the_answer_of_a_program_that_does_not_act(sample):
    prompt = []

    def answer(program):
        prompt.append(program.task)
        return program.task.split()[1] + "\n"

    (group,), report = sample(answer, script=say_turn)
    assert outcomes(report) == [Outcome.SUCCESS] * 2
    assert prompt[0].startswith("Say ")
    assert [len(t.token_ids) for t in group.trajectories] == [0, 0]  # it asked for nothing


def test_a_history_that_is_rewritten_opens_a_branch_with_the_same_return(sample, small_base):
    def play(program):
        first = program.say(program.task)
        program.say(program.task, first, "Shorter.")
        program.say({"role": "system", "content": "A summary."}, "Now what?")
        program.step(program.task.split()[1])

    (group,), report = sample(play, script=say_turn, size=2)
    assert outcomes(report) == [Outcome.SUCCESS] * 2
    assert [t.is_branch for t in group.trajectories] == [False, True] * 2
    assert [t.episode_return for t in group.trajectories] == [1.0] * 4
    assert [len(t.turn_ends) for t in group.trajectories] == [2, 1] * 2
    assert group.episodes == [group.trajectories[0], group.trajectories[2]]
    chat = ChatFormat(small_base.tokenizer)
    branch = group.trajectories[1]
    assert np.array_equal(branch.prompt_ids, chat.begin("Now what?", "A summary."))
    assert chat.decode(branch.token_ids) == "turn 2"
    assert (report.records[0].num_turns, report.records[0].num_tokens) == (
        3,
        sum(int(t.loss_mask.sum()) for t in group.trajectories[:2]),
    )


def test_asking_again_is_a_branch_after_the_very_tokens_that_were_sampled(sample):
    said = []

    def play(program):
        first = program.say(program.task)
        said.extend(program.say(program.task, first, "Go on.") for _ in range(2))
        program.step("no")

    (group,), report = sample(play, size=1)
    one, other = group.trajectories
    before = np.concatenate([one.prompt_ids, one.token_ids])[: len(other.prompt_ids)]
    assert np.array_equal(other.prompt_ids, before)
    assert not other.loss_mask[: -(other.turn_ends[-1])].any()
    assert other.is_branch and outcomes(report) == [Outcome.INVALID_ACTION]
    assert said[0] != said[1]  # turns have seeds of their own


def test_the_clients_of_openai_and_anthropic_are_answered_in_streams_too(sample):
    said = []

    def play(program):
        ours = OpenAI(base_url=program.url, api_key=program.key, max_retries=0)
        messages = [{"role": "user", "content": program.task}]
        create = ours.chat.completions.create
        said.append(create(model="x", messages=messages).choices[0].message.content)
        stream = create(model="x", messages=[*messages, *messages], stream=True)
        said.append("".join(c.choices[0].delta.content or "" for c in stream))
        said.append([model.id for model in ours.models.list()])
        url = program.variables["ANTHROPIC_BASE_URL"]
        theirs = anthropic.Anthropic(base_url=url, api_key=program.key, max_retries=0)
        options = {"model": "x", "max_tokens": 9, "system": "Be brief."}
        messages = [{"role": "user", "content": "Again."}]
        answer = theirs.messages.create(messages=messages, **options)
        said.append(answer.content[0].text)
        messages += [{"role": "assistant", "content": said[-1]}, *messages]
        with theirs.messages.stream(messages=messages, **options) as events:
            said.append("".join(events.text_stream))
        return "done"

    (group,), _ = sample(play, script=say_turn, size=1)
    assert said == ["turn 0", "turn 1", ["policy"], "turn 2", "turn 3"]
    assert [len(t.turn_ends) for t in group.trajectories] == [1, 1, 2]


def test_tools_of_the_program_are_called_in_the_template_s_format():
    said = {"a": 2, "b": "3", "c": "[4, {}]", "d": [5], "e": "NaN"}
    said |= {"f": 6, "g": "six", "h": [7, 1.5], "i": {"j": 8}, "k": 9, "l": None}
    call = json.dumps({"name": "add", "arguments": said})
    texts = [f"I add.\n<tool_call>\n{call}\n</tool_call>", "Five."]
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "array"}}
    properties["d"] = {"type": "array", "items": {"type": "number"}}
    properties["e"] = {"type": "number"}
    whole, text, none = ({"type": kind} for kind in ("integer", "string", "null"))
    properties |= {"f": {"anyOf": [whole, none]}, "g": {"anyOf": [whole, text]}}
    properties |= {"h": {"type": "array"}, "i": {"type": "object"}, "k": {}, "l": {"anyOf": [text]}}
    parameters = {"type": "object", "properties": properties}
    function = {"name": "add", "description": "Adds.", "parameters": parameters}
    told = []

    def play(program):
        client = OpenAI(base_url=program.url, api_key=program.key, max_retries=0)
        messages = [{"role": "user", "content": program.task}]
        tools = [{"type": "function", "function": function}]
        for streams in (False, True):
            answer = client.chat.completions.create(
                model="x",
                messages=messages,
                tools=tools,
                stream=streams,
            )
            if not streams:
                message = answer.choices[0].message
                (call,) = message.tool_calls
                assert message.content == "I add."
                told.append((call.function.name, json.loads(call.function.arguments)))
                result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
                messages += [message.model_dump(exclude_none=True), result]
            else:
                chunks = list(answer)
                assert chunks[-1].usage.completion_tokens > 0
                told.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
        return "5"

    tokenizer = make_tokenizer(TOOL_TEMPLATES["json"])
    with pool_of(play) as url:
        settings = make_settings("env_runners.max_new_tokens=200", url=[url])
        chat = ChatFormat(tokenizer)
        engine = ScriptedEngine(chat, lambda session, turn: texts[turn])
        runner = EnvRunner(settings, Player(chat, engine))
        (group,), _ = runner.sample([GroupRequest(0, 1)])
        runner.close()
    assert told == [("add", said | {"c": [4, {}]}), "Five."]
    (trajectory,) = group.trajectories  # one conversation, whatever the call looks like in JSON
    assert len(trajectory.turn_ends) == 2
    prompt = tokenizer.decode(trajectory.prompt_ids.tolist())
    assert '"name": "add"' in prompt and "integer" in prompt


def test_mcp_clients_and_plain_requests_step_the_environment(sample):
    said = []

    async def play_by_mcp(program):
        headers = {"Authorization": f"Bearer {program.key}"}
        async with (
            streamablehttp_client(f"{program.env}/mcp", headers=headers) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            said.append([tool.name for tool in (await session.list_tools()).tools])
            answer = await session.call_tool("act", {"action": "no"})
            said.append(answer.content[0].text)
            answer = await session.call_tool("act", {"word": "no"})
            said.append(answer.content[0].text)

    def play(program):
        asyncio.run(play_by_mcp(program))
        post = program.client.post
        shown = program.client.get(program.env).json()
        said.append((shown["tools"][0]["function"]["name"], shown["is_over"]))
        call = {"name": "act", "arguments": {"action": program.task.split()[1]}}
        said.append(post(f"{program.env}/call", json=call).json()["is_over"])
        said.append(post(f"{program.env}/step", json={"action": "no"}).status_code)
        said.append(program.ask(program.task).status_code)

    _, report = sample(play, script=say_turn, size=1)
    invalid = 'Invalid call: act has no argument "word"; call a tool: act(action).'
    assert said == [["act"], "Go on.", invalid, ("act", False), True, 409, 409]
    assert outcomes(report) == [Outcome.SUCCESS]


def test_a_program_may_give_the_reward(sample):
    def play(program):
        program.say(program.task)
        post = program.client.post
        assert post(f"{program.env}/reward", json={"reward": "much"}).status_code == 400
        assert post(f"{program.env}/reward", json={"reward": 0.25}).status_code == 200
        assert post(f"{program.env}/reward", json={"reward": 0.25}).status_code == 409

    (group,), report = sample(play, script=say_turn, size=2, posts_reward=True)
    assert [t.episode_return for t in group.trajectories] == [0.25] * 2
    assert outcomes(report) == [Outcome.SUCCESS] * 2
    refused = []

    def post(program):
        answer = program.client.post(f"{program.env}/reward", json={"reward": 1})
        refused.append(answer.status_code)

    _, report = sample(post, script=say_turn, size=1)
    assert (refused, outcomes(report)) == ([403], [Outcome.INVALID_ACTION])


def test_a_reward_that_is_owed_is_waited_for_and_never_learnt_as_0(sample):
    def judge(program):
        program.say(program.task)
        assert program.step(program.task.split()[1])["is_over"]
        time.sleep(0.1)
        assert program.client.post(f"{program.env}/reward", json={"reward": -2}).status_code == 200

    (group,), report = sample(judge, script=say_turn, size=1, posts_reward=True)
    assert [t.turn_rewards for t in group.trajectories] == [(-2.0,)]
    assert outcomes(report) == [Outcome.FAILURE]
    groups, report = sample(lambda p: None, script=say_turn, size=1, posts_reward=True)
    assert (groups, report.counts.num_faults) == ([], 4)
    assert "the program posted no reward" in report.last_fault


def test_keys_open_one_episode_while_it_lasts(sample):
    statuses, keys, both = [], [], threading.Barrier(2)

    def play(program):
        keys.append(program)
        both.wait(20)
        for path in ("/chat/completions", "/models"):
            for headers in ({"Authorization": "Bearer sk-guessed"}, {"Authorization": "x"}):
                answer = program.client.post(f"{program.url}{path}", json={}, headers=headers)
                statuses.append(answer.status_code)
        program.say(program.task)
        return program.task.split()[1]

    (group,), report = sample(play, script=say_turn, size=2)
    assert set(statuses) == {401, 405} and keys[0].key != keys[1].key
    assert outcomes(report) == [Outcome.SUCCESS] * 2
    assert [len(t.turn_ends) for t in group.trajectories] == [1, 1]
    # What an episode had is worth nothing in the next one
    old = keys[0]

    def intrude(program):
        answer = program.client.post(
            f"{program.url}/chat/completions",
            json={"messages": [{"role": "user", "content": "x"}]},
            headers={"Authorization": f"Bearer {old.key}"},
        )
        statuses.append(answer.status_code)
        headers = {"Authorization": "", "x-api-key": old.key}
        program.client.post(f"{program.env}/step", json={"action": "x"}, headers=headers)
        return program.task.split()[1]

    _, report = sample(intrude, script=say_turn, size=2)
    assert statuses[-1] == 401 and outcomes(report) == [Outcome.SUCCESS] * 2
    assert {action for _, action in word_env.HEARD}.isdisjoint({"x"})


WRONG = {
    "no messages": ({}, 400, "messages must be a list"),
    "no object": ({"messages": [5]}, 400, "messages must be a list"),
    "no role": ({"messages": [{"content": "x"}]}, 400, "role"),
    "the model's turn": ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "the last"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400,
        "must be text",
    ),
    "several": ({"n": 4, "messages": [{"role": "user", "content": "x"}]}, 400, "n: each"),
    "a stop": ({"stop": ["x"], "messages": [{"role": "user", "content": "x"}]}, 400, "stop"),
    "a choice": (
        {"tool_choice": "required", "messages": [{"role": "user", "content": "x"}]},
        400,
        "tool_choice",
    ),
    "tools without a template": (
        {"tools": [{"type": "function"}], "messages": [{"role": "user", "content": "x"}]},
        400,
        "a tool must be",
    ),
    "a bias": (
        {"logit_bias": {"5": 1}, "messages": [{"role": "user", "content": "x"}]},
        400,
        "bias",
    ),
    "a list of parameters": (
        {
            "tools": [{"function": {"name": "f", "parameters": []}}],
            "messages": [{"role": "user", "content": "x"}],
        },
        400,
        "a tool must be",
    ),
    "10 MB": ({"messages": [{"role": "user", "content": "x" * 10**7}]}, 413, "bytes"),
}


def test_requests_that_cannot_be_served_are_told_why(sample):
    told = {}

    def play(program):
        for name, (body, _, _) in WRONG.items():
            told[name] = program.client.post(f"{program.url}/chat/completions", json=body)
        broken = program.client.post(f"{program.url}/chat/completions", content=b"{")
        told["no JSON"] = broken
        tools = json.loads('[{"function": {"name": "f", "a": %s}}]' % ("[" * 900 + "]" * 900))
        told["deep"] = program.ask("x", tools=tools)
        anthropic_body = {"messages": [{"role": "user", "content": ["x", {"type": []}]}]}
        url = program.url.replace("/v1", "/v1/messages")
        told["no text"] = program.client.post(url, json=anthropic_body)
        return program.task.split()[1]

    (group,), report = sample(play, script=say_turn, size=1)
    for name, (_, status, text) in WRONG.items():
        assert (told[name].status_code, text in told[name].text) == (status, True), told[name].text
    assert [told[name].status_code for name in ("no JSON", "deep", "no text")] == [400] * 3
    assert outcomes(report) == [Outcome.SUCCESS] and not len(group.trajectories[0].token_ids)


def test_requests_at_once_are_served_one_by_one_and_a_flood_is_refused(sample):
    statuses = []

    def play(program):
        ask = lambda n: statuses.append(program.ask(f"question {n}").status_code)  # noqa: E731
        threads = [threading.Thread(target=ask, args=[n]) for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return program.task.split()[1]

    (group,), report = sample(play, script=say_turn, size=1, max_requests=12)
    assert len(statuses) == 40 and set(statuses) == {200, 429} and statuses.count(200) == 12
    assert len(group.trajectories) == 12 and outcomes(report) == [Outcome.SUCCESS]
    texts = sorted(len(t.turn_ends) for t in group.trajectories)
    assert texts == [1] * 12


def test_a_turn_that_nobody_waits_for_is_sampled_again_alike(sample):
    said = []

    def play(program):
        body = json.dumps({"messages": [{"role": "user", "content": program.task}]}).encode()
        host, _, port = program.url.removeprefix("http://").removesuffix("/v1").partition(":")
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        for sent in (body, body[:9]):  # a whole request and half a one, both left alone
            with socket.create_connection((host, int(port))) as connection:
                key = f"Authorization: Bearer {program.key}\r\n\r\n"
                connection.sendall((head + key).encode() + sent)
        time.sleep(0.3)
        said.append(program.say(program.task))
        return "no"

    (broken,), _ = sample(play, "env_runners.max_new_tokens=60", size=1)
    (whole,), _ = sample(lambda p: said.append(p.say(p.task)) or "no", size=1)
    assert sum(len(t.turn_ends) for t in broken.trajectories) <= 2
    assert len(broken.trajectories[0].token_ids) and len(whole.trajectories[0].token_ids)


def test_idle_and_broken_connections_hold_up_nobody(sample):
    said = []

    def play(program):
        host, _, port = program.url.removeprefix("http://").removesuffix("/v1").partition(":")
        with ExitStack() as idle:
            for number in range(500):
                connection = idle.enter_context(socket.create_connection((host, int(port))))
                if number % 2:
                    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
            body = {"messages": [{"role": "user", "content": program.task}], "stream": True}
            url = f"{program.url}/chat/completions"
            with program.client.stream("POST", url, json=body) as stream:
                next(stream.iter_lines())  # and it leaves
            start_s = time.monotonic()
            said.append(program.say(program.task, "turn 0", "Go on."))
            said.append(time.monotonic() - start_s)
        return program.task.split()[1]

    (group,), report = sample(play, script=say_turn, size=1)
    assert said[0] == "turn 1" and said[1] < 5
    assert outcomes(report) == [Outcome.SUCCESS]
    assert [len(t.turn_ends) for t in group.trajectories] == [2]  # what was sent is the history


def test_two_runs_at_once_share_nothing(sample):
    outer, statuses = [], []

    def play(program):
        if not outer:
            outer.append(program)
            _, report = sample(intrude, script=say_turn, size=2)
            assert outcomes(report) == [Outcome.SUCCESS] * 2
        return program.task.split()[1]

    def intrude(program):
        assert program.url != outer[0].url
        for url, key in ((program.url, outer[0].key), (outer[0].url, program.key)):
            headers = {"Authorization": f"Bearer {key}"}
            statuses.append(program.client.get(f"{url}/models", headers=headers).status_code)
        return program.task.split()[1]

    _, report = sample(play, script=say_turn, size=2)
    assert outcomes(report) == [Outcome.SUCCESS] * 2 and statuses == [401] * 4


def test_a_full_context_is_told_and_may_be_compacted(sample):
    statuses = []

    def play(program):
        statuses.append(program.ask("word " * 400))
        statuses.append(program.ask("word"))
        return "no"

    (group,), _ = sample(play, "env_runners.max_context_tokens=200", size=1)
    assert [answer.status_code for answer in statuses] == [400, 200]
    assert statuses[0].json()["error"]["code"] == "context_length_exceeded"
    assert len(group.trajectories) == 1


def python(code):
    """Returns the command of a program in Python."""
    return shlex.join([sys.executable, "-c", code])


def test_programs_that_crash_or_say_nothing_fail_and_others_do_not(sample):
    code = """
import os, sys, http.client, json
place = os.environ['OPENAI_BASE_URL'].split('/')[2]
body = json.dumps({'messages': [{'role': 'user', 'content': sys.stdin.read()}]})
client = http.client.HTTPConnection(place)
headers = {'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}
client.request('POST', '/v1/chat/completions', body, headers)
number = json.load(client.getresponse())['choices'][0]['message']['content'][-1]
if number == '0': sys.exit('no idea')
if number == '1': os.kill(os.getpid(), 9)
if number == '2': print(os.environ['AGENTPEFT_TASK'].split()[1])
"""
    script = lambda session, turn: f"number {session[-1]}"  # noqa: E731
    (group,), report = sample(python(code), script=script, size=4)
    failed = Outcome.INVALID_ACTION
    assert outcomes(report) == [failed, failed, Outcome.SUCCESS, failed]
    assert [len(t.turn_ends) for t in group.trajectories] == [1] * 4
    assert report.counts.num_faults == 0


def test_a_program_that_hangs_is_ended_with_what_it_has_started(sample, tmp_path):
    command = f"sh -c 'echo $$ > {tmp_path}/$$; sleep 60 & echo $! > {tmp_path}/$!; wait'"
    _, report = sample(command, script=say_turn, size=2, timeout_s=1)
    assert outcomes(report) == [Outcome.TIMEOUT] * 2
    numbers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(numbers) == 4
    seconds_until_gone(numbers, 5)


def test_programs_end_with_a_killed_runner_with_what_they_have_started(tmp_path):
    code = (
        "import asyncio, sys; from agentpeft.apps.gateway.program import FreshProcesses; "
        "asyncio.run(FreshProcesses(sys.argv[1], None).run({}, ''))"
    )
    # It has read its task, and later kills the process that runs it, and that watches it by then
    program = f"sleep 60 & touch {tmp_path}/$$ {tmp_path}/$!; cat; sleep 1; kill -9 $PPID; wait"
    command = shlex.join(["sh", "-c", program])
    killed = subprocess.run([sys.executable, "-c", code, command], check=False, timeout=60)
    programs = [int(path.name) for path in tmp_path.iterdir()]
    assert killed.returncode == -9 and len(programs) == 2
    seconds_until_gone(programs, 10)


def test_exit_status_78_is_the_world_s_fault(sample):
    code = "import sys; print('no disk', file=sys.stderr); sys.exit(78)"
    groups, report = sample(python(code), script=say_turn, size=1)
    assert (groups, report.counts.num_faults) == ([], 4)
    assert report.last_fault.endswith("the program ended with status 78: no disk")
    with pytest.raises(SettingsError, match=r"before they had asked.*ended with status 1: Mod"):
        sample(python("import nowhere"), script=say_turn, size=16)


def test_a_server_of_the_pool_that_is_gone_is_the_world_s_fault(sample):
    played = []

    def play(program):
        played.append(program)
        return 503 if len(played) == 1 else program.task.split()[1]

    start_s = time.monotonic()
    _, report = sample(play, script=say_turn, size=1, timeout_s=1)
    assert report.counts.num_faults == 1 and outcomes(report) == [Outcome.SUCCESS]
    assert time.monotonic() - start_s > 2  # it was left alone before it was asked again
    _, report = sample(lambda program: 500, script=say_turn, size=1)
    assert outcomes(report) == [Outcome.INVALID_ACTION]


def test_a_fault_of_the_environment_ends_the_program_and_is_played_again(sample):
    def play(program):
        word_env.FAULTS["word/" + program.task.split()[1]] = len(told) == 0
        told.append(program.client.post(f"{program.env}/step", json={"action": "fault"}))

    told = []
    _, report = sample(play, script=say_turn, size=1)
    assert told[0].status_code == 500 and report.counts.num_faults == 1


def test_a_fault_that_comes_after_its_program_has_gone_is_one_too(sample, monkeypatch):
    """A program gives up on a step, and ends; the environment fails then."""

    def play(program):
        word_env.FAULTS["word/" + program.task.split()[1]] = len(told) == 0
        told.append(program.task)
        if len(told) > 1:
            return program.task.split()[1]
        with suppress(httpx.TimeoutException):
            url = f"{program.env}/step"
            program.client.post(url, json={"action": "fault"}, timeout=0.3)
        return None

    def step_late(env, action):
        time.sleep(1.0 if action == "fault" else 0.0)
        return step(env, action)

    step = open_episode.step
    monkeypatch.setattr(open_episode, "step", step_late)
    told = []
    _, report = sample(play, script=say_turn, size=1)
    assert len(told) == 2
    assert report.counts.num_faults == 1 and outcomes(report) == [Outcome.SUCCESS]


@pytest.mark.parametrize("error", [BrokenPipeError, EngineError])
def test_an_engine_that_fails_ends_the_run_whatever_its_program_does(sample, error):
    def fail(session, turn):
        raise error("gone")

    with pytest.raises(error, match="gone"):
        sample(lambda program: program.say(program.task), script=fail, size=1)


def test_a_defect_of_the_gateway_is_the_world_s_fault_and_no_program_s(sample, monkeypatch):
    find, found = Conversations.find, []

    async def fail_once(self, messages, tools, chat):
        found.append(await find(self, messages, tools, chat))
        return found[-1] if len(found) > 1 else found[-1] + 1

    monkeypatch.setattr(Conversations, "find", fail_once)
    (group,), report = sample(
        lambda program: program.say(program.task) and program.task.split()[1],
        script=say_turn,
        size=1,
    )
    assert report.counts.num_faults == 1 and outcomes(report) == [Outcome.SUCCESS]
    assert [len(t.turn_ends) for t in group.trajectories] == [1]


def test_a_run_is_evaluated_by_its_programs_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY, "utf-8")
    Path("agent.sh").write_text(f"echo x >> played; exec sh {EXAMPLES}/curl_agent.sh\n")
    words = ("evaluation.num_tasks=4", "training.num_iterations=1")
    assert main(["gateway", "tiny.toml", *words, "--command", "sh agent.sh"]) == 0
    ending = json.loads(capsys.readouterr().out.splitlines()[-1])
    run = str(Path(ending["adapter"]).parents[2])
    Path("played").unlink()
    assert main(["evaluate", run, "--policy", "base", "--policy", "oracle"]) == 0
    trained, base, oracle = json.loads(capsys.readouterr().out.splitlines()[-1])[
        "policies"
    ].values()
    assert len(Path("played").read_text().split()) == 8
    names = ("success_rate", "avg_turns", "avg_tokens")
    assert [trained[name] for name in names] == [ending["after"][name] for name in names]
    assert base["avg_tokens"] > 0 and oracle["success_rate"] == 1
    for others in (
        ["--votes", "2"],
        ["--replay", "1"],
        ["--endpoint", "http://x", "--endpoint-model", "m"],
    ):
        assert main(["evaluate", run, "--output", "other", *others]) == 2
        assert "env_runners.agent={} leaves it out" in capsys.readouterr().err
    assert main(["evaluate", run, "--votes", "2", "env_runners.agent={}"]) == 0


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"command": "nowhere"}, "no executable program 'nowhere'"),
        ({"command": "sh", "folder": "/nowhere"}, "there is no folder"),
        ({"command": "sh", "url": ["http://x"]}, "set command, or url"),
        ({"command": "sh", "tempo": 3}, "tempo"),
        ({"command": "sh", "timeout_s": 700}, "must be below env_runners.episode_timeout_s"),
        ({"command": "sh", "timeout_s": "300"}, "timeout_s: input should be a valid number"),
        ({"command": "sh", "timeout_s": -1}, "timeout_s: input should be greater than 0"),
        ({"command": "sh", "max_requests": 0}, "max_requests: input should be greater than"),
        ({"command": "sh", "posts_reward": "false"}, "posts_reward: input should be a valid bool"),
        ({"command": 5}, "command: input should be a valid string, got 5"),
        ({"url": []}, "set command, or url"),
        ({"url": ["http://[::1"]}, "url: input should be a valid URL"),
        ({"url": ["localhost:9/play"]}, "scheme should be 'http' or 'https', got 'local"),
        ({"url": "http://x"}, "url"),
        ({"class": "agentpeft.nowhere:X"}, "cannot be imported"),
        ({"class": 5}, "needs class = module:Class, got 5"),
    ],
)
def test_wrong_agents_are_refused_in_a_line(small_base, agent, message):
    settings = make_settings(**agent)
    with pytest.raises(SettingsError, match=message):
        make_agent(settings, ChatFormat(small_base.tokenizer))


def test_the_command_is_told_a_program_or_servers(capsys):
    for words in ([], ["--command", "sh", "--url", "http://localhost:9/play"]):
        assert main(["gateway", "arithmetic_add", *words]) == 2
        assert "give --command" in capsys.readouterr().err


EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
ARITHMETIC = (word_runs.ARITHMETIC, "environment.kwargs.num_digits=1")


def check_equal(ours, theirs):
    """Checks that groups have the same tokens, log-probabilities and rewards."""
    names = ("prompt_ids", "token_ids", "loss_mask", "sampling_logprobs")
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one.trajectories, other.trajectories, strict=True):
            assert all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)
            assert (a.turn_ends, a.turn_rewards) == (b.turn_ends, b.turn_rewards)
            assert a.outcome is b.outcome


def test_the_shell_s_agent_plays_the_tokens_of_our_own_loop(sample):
    ours, _ = sample(None, "deterministic=true", *ARITHMETIC)
    command = f"sh {EXAMPLES}/curl_agent.sh"
    check_equal(ours, sample(command, "deterministic=true", *ARITHMETIC)[0])


@pytest.mark.slow
def test_the_client_s_agent_plays_the_tokens_of_our_own_loop(sample):
    ours, _ = sample(None, "deterministic=true", *ARITHMETIC, num_groups=2)
    command = f"{sys.executable} {EXAMPLES}/openai_agent.py"
    theirs, _ = sample(command, "deterministic=true", *ARITHMETIC, num_groups=2)
    check_equal(ours, theirs)


@pytest.mark.slow
def test_langgraph_s_agent_plays_the_tokens_of_our_own_loop(sample, drivers_python):
    ours, _ = sample(None, "deterministic=true", num_groups=2)
    command = f"{drivers_python} {EXAMPLES}/langgraph_agent.py"
    theirs, _ = sample(command, "deterministic=true", num_groups=2)
    check_equal(ours, theirs)


@pytest.mark.slow
def test_64_programs_at_once_lose_nothing(sample):
    settings = (*ARITHMETIC, "deterministic=true", "env_runners.max_concurrent_episodes=64")
    ours, _ = sample(None, *settings, num_groups=8, size=16)
    command = f"sh {EXAMPLES}/curl_agent.sh"
    theirs, report = sample(command, *settings, num_groups=8, size=16)
    assert len(report.records) == 128 and report.counts.num_faults == 0
    check_equal(ours, theirs)


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    "example",
    [
        pytest.param("server_agent.py", marks=pytest.mark.slow),
        "curl_agent.sh",
        pytest.param("openai_agent.py", marks=pytest.mark.slow),
        pytest.param("langgraph_agent.py", marks=pytest.mark.slow),
    ],
)
def test_an_example_is_trained(example, tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY, "utf-8")
    program = "sh" if example.endswith(".sh") else sys.executable
    if example.startswith("langgraph"):
        program = request.getfixturevalue("drivers_python")
    agent = ["--command", f"{program} {EXAMPLES / example}"]
    with ExitStack() as servers:
        if example.startswith("server"):
            port = str(free_ports(1)[0])
            server = subprocess.Popen([program, EXAMPLES / example, port])
            servers.callback(server.wait)
            servers.callback(server.kill)
            agent = ["--url", f"http://127.0.0.1:{port}/play"]
            wait_until(lambda: listens(int(port)))
        assert main(["gateway", "tiny.toml", "evaluation.num_tasks=4", *agent]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["after"]["num_episodes"] == 4
    run = Path(lines[-1]["adapter"]).parents[2]
    episodes = [json.loads(line) for line in (run / "sessions/train.jsonl").open()]
    assert {role for role, _ in episodes[0]["messages"]} >= {"user", "assistant"}
    said = [line for line in lines if "reward" in line]
    assert len(said) == 2 and any(line["grad_norm"] > 0 for line in said)


@pytest.mark.slow
def test_runners_of_ray_play_by_programs(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY, "utf-8")
    # A name of this folder alone; each program notes the process that has started it
    Path("agent.sh").write_text(f"echo $PPID >> played; exec sh {EXAMPLES}/curl_agent.sh\n")
    words = ("env_runners.num_env_runners=2", "evaluation.num_tasks=8")
    assert main(["gateway", "tiny.toml", *words, "--command", "sh agent.sh"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len([line for line in lines if "reward" in line]) == 2
    run = Path(lines[-1]["adapter"]).parents[2]
    episodes = [json.loads(line) for line in (run / "sessions/train.jsonl").open()]
    evaluated = lines[-1]["before"]["num_episodes"] + lines[-1]["after"]["num_episodes"]
    started_by = Path("played").read_text().split()
    assert len(episodes) == 16 and evaluated == 16
    assert len(started_by) == 32 and len(set(started_by)) == 2
