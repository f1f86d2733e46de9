"""`OpenEpisode`: an episode as its program sees it, a model to ask and a world to act in."""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from agentpeft.apps.drivers.tool_episode import ToolEpisode, compose_answer
from agentpeft.apps.gateway.conversations import Conversations
from agentpeft.apps.gateway.wire import MODEL, ChatRequest, Json, Refused, read_message
from agentpeft.envs import EnvFault, Outcome
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.envs.tools.tool_table import NumberText, ToolCall
from agentpeft.policies.engines.outside_agent import Call, Complete
from agentpeft.policies.messages import Completion, StopReason
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.environments import Env
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.rollout.play import StepResult, check_reward, reward_for, step
from agentpeft.policies.rollout.tool_chat import ToolChat

_MAX_WAITING = 16
"""Requests of one episode that may wait for one another: each is sampled alone."""
FindChat = Callable[[ChatRequest], ChatFormat]
HasGone = Callable[[], Awaitable[bool]]


class OpenEpisode:
    """Answers what one program asks. `key` is what it shows, and nobody else has.

    `stopped` is done once no request is answered any more: the episode is over, or something has
    failed. Where the program posts the reward, the environment's end is not the
    episode's: `outcome` is UNKNOWN until then.
    """

    def __init__(
        self,
        env: Env,
        builder: EpisodeBuilder,
        complete: Complete,
        call: Call,
        max_requests: int,
        *,
        posts_reward: bool,
    ) -> None:
        self.key = secrets.token_urlsafe(24)
        self.outcome: Outcome | None = None
        self._failure: Exception | None = None
        self.is_full = False
        self.num_requests = self.num_steps = 0
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._env, self._builder, self._complete, self._call = env, builder, complete, call
        self._max_requests, self._posts_reward = max_requests, posts_reward
        self._conversations = Conversations(builder)
        self._model, self._world = asyncio.Lock(), asyncio.Lock()
        self._num_waiting, self._asked = 0, builder
        self.tools = ToolEpisode(env).tools

    async def answer(self, request: ChatRequest, find_chat: FindChat, has_gone: HasGone) -> Json:
        """Returns the model's next turn, as a chat completion.

        Requests that come at once are answered one by one. What nobody waits for any more is not
        kept: a client that asks again gets the same turn. Raises: Refused.
        """
        if self._num_waiting >= _MAX_WAITING:
            raise Refused(429, f"{_MAX_WAITING} requests of this episode wait", "rate_limit_error")
        self._num_waiting += 1
        try:
            async with self._model:
                return await self._sample(request, find_chat(request), has_gone)
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._num_waiting -= 1

    async def _sample(self, request: ChatRequest, chat: ChatFormat, has_gone: HasGone) -> Json:
        _check_open(is_over=self.stopped.done())
        if self.num_requests >= self._max_requests:
            text = f"the episode has had {self._max_requests} requests (agent.max_requests)"
            raise Refused(429, text, "rate_limit_error")
        builder, place = await self._conversations.find(request.messages, request.tools, chat)
        num_prompt_tokens = len(builder.context)
        completion = await self._complete(builder)
        if await has_gone():
            raise Refused(499, "the client has gone")
        _check_open(is_over=self.stopped.done())  # what comes after is not learnt from
        if not len(completion.token_ids):
            self.is_full = True
            text = "the context is full: the conversation leaves no room for another turn"
            raise Refused(400, text, "context_length_exceeded")
        self.is_full = completion.stop_reason is StopReason.CONTEXT_FULL
        said = chat.decode(completion.token_ids)
        answer = _write_completion(said, completion, num_prompt_tokens, request, chat)
        told = read_message(answer["choices"][0]["message"])  # as the program will send it back
        self.num_requests, self._asked = self.num_requests + 1, builder
        builder.add_turn(completion, said)
        self._conversations.note_answer(place, builder, told)
        return answer

    async def step(self, action: str) -> StepResult:
        """Acts in the environment. Raises: Refused."""
        async with self._world:
            _check_open(is_over=self.is_over)
            self.num_steps += 1
            try:
                result: StepResult = await self._call(partial(step, self._env, to_utf8(action)))
            except Exception as error:
                self._fail(error)
                raise
            if result.is_last:
                self._asked.messages.append(("user", result.observation))
            if self._posts_reward:
                self.outcome = self.outcome or (Outcome.UNKNOWN if result.is_last else None)
            else:
                self._builder.add_reward(result.reward)
                if result.is_last:
                    self._end(result.outcome)
            return result

    async def call_tool(self, call: ToolCall) -> str:
        """Acts by a call of a tool, and returns its answer. Raises: Refused."""
        problem = self.tools.find_problem(call)
        result = await self.step(self.tools.to_action(call))
        return compose_answer(result.observation, problem, is_over=result.is_last)

    def post_reward(self, reward: object) -> None:
        """Ends the episode with a reward that the program has found. Raises: Refused."""
        if not self._posts_reward:
            text = "the environment gives the rewards; set env_runners.agent.posts_reward = true"
            raise Refused(403, text)
        _check_open(is_over=self.stopped.done())
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) < 1e6:
            raise Refused(400, f"a reward must be a number below a million, got {reward!r:.60}")
        self._builder.add_reward(check_reward(reward))
        self._end(Outcome.SUCCESS if reward > 0 else Outcome.FAILURE)

    async def close(self) -> None:
        """Returns once nothing that was asked for is under way. Raises: what has failed."""
        self._stop()
        async with self._model, self._world:
            if self._failure is not None:
                raise self._failure

    def _fail(self, error: Exception) -> None:
        """Ends the episode by what no program has done; a defect of the gateway is the world's."""
        if not isinstance(error, (Refused, RecursionError)):
            is_defect = isinstance(error, (ArithmeticError, AttributeError, LookupError, TypeError))
            fault = EnvFault(f"the gateway failed: {error!r:.200}")
            self._failure = self._failure or (fault if is_defect else error)
            self._stop()

    def give_up(self, outcome: Outcome) -> None:
        """Ends a closed episode that its program has left unfinished. Raises: EnvFault.

        The world's fault is also a reward that the program owes: nothing can be learnt from none.
        """
        if self._posts_reward and self.outcome in (None, Outcome.UNKNOWN):
            raise EnvFault(f"the program posted no reward ({outcome})")
        if self.outcome is None:
            self._builder.add_reward(reward_for(self._env, outcome))
            self._end(outcome)

    @property
    def is_over(self) -> bool:
        """Whether the environment, or all, has ended."""
        return self.stopped.done() or self.outcome is not None

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._stop()

    def _stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)


def _check_open(*, is_over: bool) -> None:
    if is_over:
        raise Refused(409, "the episode is over")


def _write_completion(
    said: str, sampled: Completion, num_prompt_tokens: int, request: ChatRequest, chat: ChatFormat
) -> Json:
    """Returns a turn as a chat completion, in OpenAI's format."""
    text = chat.strip_thoughts(said)
    is_cut = sampled.stop_reason is not StopReason.STOP_TOKEN
    calls: Sequence[ToolCall] = ()
    if isinstance(chat, ToolChat) and not is_cut:
        text, calls = chat.split_turn(text)
    name, num_tokens = f"chatcmpl-{secrets.token_hex(8)}", len(sampled.token_ids)
    message: Json = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        schemas = {f["name"]: f.get("parameters") for f in (t["function"] for t in request.tools)}
        message["tool_calls"] = []
        for call in calls:
            arguments = json.dumps(_to_type(call.arguments, schemas.get(call.name)))
            told = {"name": call.name, "arguments": arguments}
            call_id = f"call-{secrets.token_hex(8)}"
            message["tool_calls"].append({"id": call_id, "type": "function", "function": told})
    finish = "length" if is_cut else "tool_calls" if calls else "stop"
    return {
        "id": name,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
        },
    }


def _to_type(value: object, schema: object) -> object:
    """Returns an argument that a model wrote as text in the type that its JSON schema asks for."""
    schema = schema if isinstance(schema, dict) else {}
    told = str([schema.get(name) for name in ("type", "anyOf", "oneOf")])
    is_text = "'string'" in told or "'" not in told
    if isinstance(value, NumberText):
        is_text = "'string'" in told and "'integer'" not in told and "'number'" not in told
    if isinstance(value, str) and not is_text:
        with suppress(ValueError, RecursionError):  # another text is the program's affair
            read = json.loads(value)
            json.dumps(read, allow_nan=False)
            return read
    if isinstance(value, list):
        return [_to_type(item, schema.get("items")) for item in value]
    if isinstance(value, dict):
        properties = schema.get("properties")
        kinds = properties if isinstance(properties, dict) else {}
        return {name: _to_type(item, kinds.get(name)) for name, item in value.items()}
    return value
