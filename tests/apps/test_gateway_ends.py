"""How programs and episodes end, whatever is still under way, and what is read of requests."""

import asyncio
import time

import gymnasium
import psutil
import pytest
import word_env  # noqa: F401 (it registers the environment)
from chat_templates import TOOL_TEMPLATES, make_tokenizer
from process_parts import seconds_until_gone

from agentpeft.apps.gateway.conversations import Conversations, RequestChat, RequestTools
from agentpeft.apps.gateway.open_episode import OpenEpisode
from agentpeft.apps.gateway.program import FreshProcesses, ServerPool
from agentpeft.apps.gateway.wire import ChatRequest, Message, Refused
from agentpeft.envs import EnvFault, Outcome
from agentpeft.envs.tools.tool_table import ToolCall
from agentpeft.policies.messages import Completion, StopReason
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.settings.config import ModelSettings

TOKENIZER = make_tokenizer(TOOL_TEMPLATES["json"])
CHAT = ChatFormat(TOKENIZER)
NO_TASK: dict[str, str] = {}


def run(command, task="", **options):
    """Returns how a program ended, and after how many seconds."""
    start_s = time.monotonic()
    ended = asyncio.run(FreshProcesses(command, None, **options).run(NO_TASK, task))
    return ended, time.monotonic() - start_s


def test_a_program_is_over_when_its_process_is_whatever_holds_its_output():
    for background in ("sleep 20 &", "setsid sleep 20 &", "setsid yes &"):
        ended, took_s = run(f"sh -c '{background} cat; echo hi'", "task\n")
        assert ended.problem == "" and took_s < 10
        assert "yes" in background or ended.output == "task\nhi\n"


def test_a_program_is_killed_though_another_holds_its_output():
    async def cancel():
        program = FreshProcesses("sh -c 'setsid sleep 20 & sleep 20'", None).run(NO_TASK, "")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(program, 0.3)

    start_s = time.monotonic()
    asyncio.run(cancel())
    assert time.monotonic() - start_s < 10


def test_the_last_of_what_is_printed_is_kept():
    ended, _ = run("sh -c 'head -c 5000000 /dev/zero; echo end'")
    assert len(ended.output) == 1 << 20 and ended.output.endswith("end\n")


def test_a_program_that_cannot_be_started_is_the_world_s_fault(tmp_path):
    (tmp_path / "gone").mkdir()
    programs = FreshProcesses("sh", str(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    with pytest.raises(EnvFault, match="could not be started"):
        asyncio.run(programs.run(NO_TASK, ""))


def test_a_program_is_ended_though_its_watch_is_gone():
    async def cancel():
        before = set(psutil.Process().children())
        running = asyncio.ensure_future(FreshProcesses("sleep 60", None).run(NO_TASK, ""))
        while len(started := set(psutil.Process().children()) - before) < 2:
            await asyncio.sleep(0.05)
        for process in started:
            if process.name() == "sh":
                process.kill()
        running.cancel()
        await asyncio.wait({running})
        return started

    seconds_until_gone([process.pid for process in asyncio.run(cancel())], 2)


def test_a_pool_that_is_gone_is_the_world_s_fault():
    with pytest.raises(EnvFault, match="ConnectError"):
        asyncio.run(ServerPool(["http://127.0.0.1:1/play"]).run(NO_TASK, ""))


class Play:
    """An episode whose turns and steps wait until `go` is set."""

    def __init__(self, *, posts_reward=False):
        env = gymnasium.make(
            "Tests/Word-v0", reward={"invalid_action": -0.3}, disable_env_checker=True
        )
        prompt, _ = env.reset(seed=0)
        self.word, self.num_asked, self.go = prompt.split()[1], 0, asyncio.Event()
        self.builder = EpisodeBuilder(prompt, CHAT.begin(prompt), CHAT)
        self.episode = OpenEpisode(
            env, self.builder, self.complete, self.call, 9, posts_reward=posts_reward
        )

    async def complete(self, builder):
        self.num_asked += 1
        await self.go.wait()
        ids = CHAT.encode_turn("Well.")
        return Completion(ids, (ids * 0).astype("float32"), StopReason.STOP_TOKEN, 0)

    async def call(self, function):
        await self.go.wait()
        return function()

    async def ask(self, text="Hm?"):
        async def stays():
            return False

        request = ChatRequest((Message("user", text),), ())
        return await self.episode.answer(request, lambda _: CHAT, stays)


def test_what_is_sampled_after_the_end_is_not_learnt_from():
    async def play():
        one = Play()
        asked = [asyncio.create_task(one.ask(text)) for text in "ab"]
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(one.episode.close())
        await asyncio.sleep(0.05)
        one.go.set()
        await closing
        one.episode.give_up(Outcome.TIMEOUT)
        for request in (*asked, one.ask()):
            with pytest.raises(Refused, match="over"):
                await request
        assert (one.num_asked, one.builder.num_turns) == (1, 0)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("action", "reward", "outcome"),
    [
        ("word", 1.0, Outcome.SUCCESS),
        ("no", -0.3, Outcome.INVALID_ACTION),
    ],
)
def test_an_episode_ends_once_though_a_step_is_under_way(action, reward, outcome):
    async def play():
        one = Play()
        step = asyncio.create_task(one.episode.step(one.word if action == "word" else action))
        closing = asyncio.create_task(one.episode.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        one.go.set()
        await closing
        await step
        one.episode.give_up(Outcome.INVALID_ACTION)
        assert (one.builder.episode_return, one.episode.outcome) == (reward, outcome)

    asyncio.run(play())


def test_each_turn_has_a_reward_though_none_was_given():
    async def play():
        one = Play(posts_reward=True)
        one.go.set()
        for text in "ab":
            await one.ask(text)
        one.episode.post_reward(2)
        root, *branches = one.builder.to_trajectories(0)
        assert [len(t.turn_rewards) for t in (root, *branches)] == [1, 1]
        assert [t.episode_return for t in (root, *branches)] == [2, 2]

    asyncio.run(play())


def test_a_reward_before_the_first_turn_is_the_first_one_s():
    builder = EpisodeBuilder("Hm?", CHAT.begin("Hm?"), CHAT)
    builder.add_reward(0.25)
    ids = CHAT.encode_turn("Well.")
    for reward in (1.0, -0.5):
        turn = Completion(ids, (ids * 0).astype("float32"), StopReason.STOP_TOKEN, 0)
        builder.add_turn(turn, "Well.")
        builder.add_reward(reward)
    assert builder.to_trajectory().turn_rewards == (1.25, -0.5)
    assert builder.episode_return == 0.75


def test_a_reward_that_is_posted_while_a_step_is_under_way_stays():
    async def play():
        one = Play(posts_reward=True)
        step = asyncio.create_task(one.episode.step(one.word))
        await asyncio.sleep(0.05)
        one.episode.post_reward(-1)
        one.go.set()
        assert (await step).is_last
        await one.episode.close()
        one.episode.give_up(Outcome.INVALID_ACTION)
        assert (one.builder.episode_return, one.episode.outcome) == (-1, Outcome.FAILURE)

    asyncio.run(play())


def test_the_model_may_be_asked_about_the_end_where_the_reward_is_posted():
    async def play():
        one = Play(posts_reward=True)
        one.go.set()
        await one.episode.step(one.word)
        await one.ask("How was it?")
        with pytest.raises(Refused, match="over"):
            await one.episode.step(one.word)
        one.episode.post_reward(1)
        with pytest.raises(Refused, match="over"):
            await one.ask("And now?")

    asyncio.run(play())


def test_half_a_character_in_an_action_is_replaced_as_in_our_own_loop():
    async def play():
        one, acted = Play(), []
        one.episode._env.step = lambda action: acted.append(action) or ("", 0.0, True, False, {})
        one.go.set()
        await one.episode.step("a\ud83d")
        (action,) = acted
        assert action.encode() and action[0] == "a"

    asyncio.run(play())


ADD = {"name": "add", "description": "Adds.", "parameters": {"properties": {"a": {}}}}
TOOLS = ({"type": "function", "function": ADD},)
FIRST, CALL = Message("user", "Hm?"), Message("assistant", "", (ToolCall("add", {"a": "2"}),))
RESULT, NEXT = Message("tool", "5"), Message("user", "And now?")


@pytest.mark.parametrize(
    "rest",
    [
        [CALL, RESULT],
        [CALL, RESULT, NEXT],
        [Message("assistant", "Well."), NEXT],
        [CALL, RESULT, Message("assistant", "Well."), NEXT],
    ],
)
def test_a_user_s_message_is_no_tool_s_result(rest):
    chat = RequestChat(TOKENIZER, ModelSettings(), RequestTools(TOOLS))
    conversations = Conversations(EpisodeBuilder("", CHAT.begin("Else."), CHAT))
    builder, _ = asyncio.run(conversations.find([FIRST, *rest], TOOLS, chat))
    told = [
        {"role": m.role, "content": m.text}
        | {
            "tool_calls": [
                {"function": {"name": c.name, "arguments": c.arguments}} for c in m.calls
            ]
        }
        for m in (FIRST, *rest)
    ]
    expected = TOKENIZER.apply_chat_template(
        told, tools=list(TOOLS), tokenize=False, add_generation_prompt=True
    )
    assert TOKENIZER.decode(builder.context.tolist()) == expected


def test_a_request_that_had_no_answer_is_asked_again_after_the_same_tokens():
    root = EpisodeBuilder("Hm?", CHAT.begin("Hm?"), CHAT)
    conversations = Conversations(root)

    def find(*messages):
        return asyncio.run(conversations.find(messages, (), CHAT))

    answer, ids = Message("assistant", "Well."), CHAT.encode_turn("Well.")
    for later in (None, NEXT):
        asked = (FIRST, answer, later) if later else (FIRST,)
        (one, _), (again, place) = find(*asked), find(*asked)
        assert one.context.tolist() == again.context.tolist()
        assert one.first_turn + one.num_turns == again.first_turn + again.num_turns  # the seed
        logprobs = (ids * 0).astype("float32")
        again.add_turn(Completion(ids, logprobs, StopReason.STOP_TOKEN, 0), "Well.")
        conversations.note_answer(place, again, answer)
    assert [branch is again for branch in root.branches] == [True]  # what had no answer is gone


def test_a_long_new_history_is_read_no_further_than_the_context():
    chat = ChatFormat(TOKENIZER)
    chat.max_context_tokens = 200
    history = [Message("user", "Well?"), Message("assistant", "Well.")] * 4000
    conversations = Conversations(EpisodeBuilder("", chat.begin("Else."), chat))
    start_s = time.monotonic()
    builder, _ = asyncio.run(conversations.find([*history, NEXT], (), chat))
    assert 200 < len(builder.context) < 300 and time.monotonic() - start_s < 5
