"""`ToolChat`: actions as tool calls, in the format of the model's own chat template."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.envs.tools.tool_table import (
    ANY_TEXT,
    NumberText,
    ToolCall,
    ToolTable,
    find_tools,
    read_json,
)
from agentpeft.policies.messages import Ids
from agentpeft.policies.rollout.chat import (
    ACTION,
    OBSERVATION,
    PROMPT,
    ChatFormat,
    FoundAction,
    Messages,
    to_message,
)
from agentpeft.policies.settings.config import ModelSettings, Settings

_DECODER = json.JSONDecoder(
    parse_int=NumberText, parse_float=NumberText, parse_constant=str, strict=False
)
_SECOND = "Sentinelsecond"
_ODD = "'\"\n\\é, {"
"""What some format may write otherwise, or end at."""
_XML_CALL = "<tool_call>"
_XML_HEAD = re.compile(r"<tool_call>\s*+<function=\s*+([^\s<>=\"'/]++)")
_XML_ARGUMENT = re.compile(r"\s*+>\s*+<parameter=\s*+([^\s<>=\"']++)>\n?")
_XML_END = re.compile(r"\n?</parameter(?=\s*+>\s*+(?:<parameter=|</function>))")
"""Of an argument. No pattern backtracks: what a model writes may be long."""


@dataclass(frozen=True)
class JsonCalls:
    """Calls as JSON objects between two marks; `arguments` is what their arguments are named."""

    arguments: str
    opening: str
    closing: str

    @property
    def mark(self) -> str:
        """What precedes a call; empty where calls are objects alone."""
        return self.opening.strip()

    def find(self, text: str) -> int:
        """Returns where the first call begins; -1 where there is none."""
        if self.mark:
            return text.find(self.mark)
        braces = (match.start() for match in islice(re.finditer(r"\{", text), 100))
        return next((brace for brace in braces if _reads_call(text, brace)), text.find("{"))

    def write(self, call: ToolCall) -> str:
        """Returns a call's text."""
        values = {"name": call.name, self.arguments: call.arguments}
        return f"{self.opening}{json.dumps(values, ensure_ascii=False)}{self.closing}"

    def read(self, text: str) -> Iterator[ToolCall]:
        """Yields the calls behind each mark; where there is none, those of all objects in braces.

        Whatever else stands in the text is skipped; a malformed call has no name. Closing
        marks may be missing, and strings may have line breaks, as models write them.
        """
        mark, place = self.mark, self.find(text)
        while place >= 0:
            start = _skip(text, place + len(mark))
            try:
                value, start = _DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                yield ToolCall(None, None)
                following = len(text)
            else:
                yield from map(_to_call, value if isinstance(value, list) else [value])
                following = _skip(text, start, ",;")
            if text.startswith("{", following):
                place = following - len(mark)
            else:
                place = text.find(mark, start) if mark else -1


def _to_call(value: object) -> ToolCall:
    match value:
        case {"name": str() as name, **rest}:
            arguments = rest.get("arguments", rest.get("parameters"))
            if isinstance(arguments, str):
                arguments = read_json(arguments)
            return ToolCall(name, {} if arguments is None else arguments)
    return ToolCall(None, value)


def _reads_call(text: str, place: int) -> bool:
    try:
        return _to_call(_DECODER.raw_decode(text, place)[0]).name is not None
    except (ValueError, RecursionError):
        return False


def _skip(text: str, place: int, more: str = "") -> int:
    """Returns the first place from `place` on without space, or one of `more`."""
    while place < len(text) and (text[place].isspace() or text[place] in more):
        place += 1
    return place


class XmlCalls:
    """Calls as Qwen3.5 and Nemotron 3 write them, with the values of arguments as they are.

        <tool_call><function=name><parameter=argument>value</parameter></function></tool_call>

    Space between marks may differ; what ends a call may be missing.
    """

    def __init__(self, write: Callable[[ToolCall], str]) -> None:
        """`write` returns what the template writes."""
        self.write = write

    def find(self, text: str) -> int:
        """Returns where the first call begins; -1 where there is none."""
        return text.find(_XML_CALL)

    def read(self, text: str) -> Iterator[ToolCall]:
        """Yields the calls, whatever else stands in the text; a malformed one has no name."""
        place = self.find(text)
        while place >= 0:
            call, end = self._read_one(text, place)
            yield call
            place = text.find(_XML_CALL, max(end, place + len(_XML_CALL)))

    def _read_one(self, text: str, place: int) -> tuple[ToolCall, int]:
        """Returns the call that begins at a place, and where it ends."""
        arguments: dict[str, str] = {}
        head = _XML_HEAD.match(text, place)
        if head is None:
            return ToolCall(None, None), place
        end = head.end()
        while pair := _XML_ARGUMENT.match(text, end):
            closing = _XML_END.search(text, pair.end())
            if closing is None:  # nor does any later call have an end
                return ToolCall(None, None), len(text)
            if pair[1] in arguments:
                return ToolCall(None, None), closing.end()
            arguments[pair[1]] = text[pair.end() : closing.start()]
            end = closing.end()
        return ToolCall(head[1], arguments), end


class ToolChat(ChatFormat):
    """A chat whose actions are calls of an environment's tools, and whose answers are a tool's.

    Its template is given the tools, and shows by sentinels how it writes calls and answers. A turn
    may have several calls: each is an action of its own, and all their answers precede the next
    turn. One without a call, or with a malformed one, is an invalid action, and the agent is told
    in words what was wrong.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: ModelSettings,
        tools: ToolTable,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """Raises: SettingsError where the template has no place for tools that is known."""
        self._tools, self._schemas = tools, tools.to_openai()
        super().__init__(tokenizer, model, eos_token_ids)
        asked = self._render([to_message("user", PROMPT)], asks=True)
        if not all(tool.name in asked for tool in tools):
            raise _refusal("has no tools")
        self.calls = self._read_calls(asked.rpartition(PROMPT)[2])
        """How calls are written and read."""
        self._check_calls()
        self._check_answers()

    def find_actions(self, said: str) -> list[FoundAction]:
        """Returns the action of each call in turn; of a turn without a call an invalid one."""
        return find_actions(self._tools, self.calls.read(self.strip_thoughts(said)))

    def split_turn(self, text: str) -> tuple[str, list[ToolCall]]:
        """Returns what a turn says before its calls, and the calls: none if one is malformed."""
        calls = list(self.calls.read(text))
        if not all(isinstance(c.name, str) and isinstance(c.arguments, dict) for c in calls):
            calls = []
        return text[: self.calls.find(text)].strip() if calls else text, calls

    def encode_action(self, action: str) -> Ids:
        """Returns the tokens of a turn whose call has this action; of no action, of its text."""
        try:
            call = self._tools.find_call(action)
        except ValueError:
            return super().encode_action(action)
        return self.encode_turn(self.calls.write(call))

    def _write_answers(self, observations: Sequence[str]) -> str:
        return self._render_answers([to_message("user", PROMPT)], observations)

    def _render(self, messages: Messages, asks: bool) -> str:
        try:
            return super()._render(messages, asks)
        except TypeError as error:
            raise _refusal(f"cannot render a call: {error}") from error

    def _read_calls(self, asked: str) -> JsonCalls | XmlCalls:
        """Returns how the template writes calls; `asked` is what it asks for a turn with.

        Where a thought precedes them, it is what this chat writes before them from now on.
        """
        call = self._make_call(ACTION)
        turn, end = self._render_turn(call), self._model.end_of_thought
        thought, mark, _ = turn.rpartition(end) if end else ("", "", "")
        before = thought + mark
        before += turn[len(before) : _skip(turn, len(before))] if mark else ""
        if mark and before.startswith(asked):
            self._before_action = before.removeprefix(asked)
        elif mark:
            self._before_action = end + before.rpartition(end)[2]
        elif turn.startswith(asked):
            before = asked
        else:
            raise _refusal("asks for other turns")

        def write(call: ToolCall) -> str:
            return self._render_turn(call).removeprefix(before)

        opening, brace, rest = write(call).partition("{")
        for arguments in ("arguments", "parameters"):
            as_json = JsonCalls(arguments, "", "").write(call)
            if (brace + rest).startswith(as_json):
                return JsonCalls(arguments, opening, (brace + rest).removeprefix(as_json))
        if _XML_HEAD.match(write(call).lstrip()):
            return XmlCalls(write)
        raise _refusal("writes calls neither as JSON nor as <tool_call><function=...>")

    def _render_turn(self, *calls: ToolCall) -> str:
        """Returns a turn of calls behind a prompt, without its end."""
        messages = [to_message("user", PROMPT), to_turn(*calls)]
        turn = self._render(messages, asks=False).rpartition(PROMPT)[2]
        calls_text, closing, _ = turn.rpartition(self._closing) if self._closing else ("", "", "")
        if not closing:
            raise _refusal("ends a turn of calls otherwise")
        return calls_text

    def _check_calls(self) -> None:
        """Raises: SettingsError unless calls are read as the template writes them."""
        calls = [self._make_call(f"one {_ODD}"), self._make_call("two")]
        turns = [(self._before_action + self.calls.write(calls[0]), calls[:1])]
        with suppress(SettingsError):  # some templates have one call a turn
            turns.append((self._render_turn(*calls), calls))
        for text, expected in turns:
            if list(self.calls.read(self.strip_thoughts(text))) != expected:
                raise _refusal("writes calls that are not read")

    def _render_answers(self, history: Messages, answers: Sequence[str]) -> str:
        """Returns the text from the end of a turn, of a call after `history`, to the next turn."""
        call, tools = to_turn(self._make_call(ACTION)), [to_message("tool", a) for a in answers]
        behind = self._render([*history, call, *tools], asks=True).partition(ACTION)[2]
        return behind.partition(self._closing)[2]

    def _check_answers(self) -> None:
        """Raises: SettingsError unless the template writes answers alike, and as they are."""
        first = [to_message("user", PROMPT)]
        later = [*first, to_turn(self._make_call("one")), to_message("tool", "two")]
        texts = {
            self._render_answers(history, [OBSERVATION, _SECOND]) for history in (first, later)
        }
        _, observation, rest = min(texts).partition(OBSERVATION)
        if len(texts) > 1 or not observation or _SECOND not in rest:
            raise _refusal("cannot be extended call by call")
        odd = self._write_answers([_ODD])
        if _ODD not in odd and json.dumps(_ODD, ensure_ascii=False) not in odd:
            raise _refusal("rewrites what a tool answers")

    def _make_call(self, value: str) -> ToolCall:
        tool = next(iter(self._tools))
        return ToolCall(tool.name, dict.fromkeys(tool.parameters, value))


def _refusal(problem: str) -> SettingsError:
    instead = "set it to false: the environment's text actions need no template"
    return SettingsError(f"model.tool_calls: the chat template {problem}; {instead}")


def find_actions(tools: ToolTable, calls: Iterable[ToolCall]) -> list[FoundAction]:
    """Returns the action of each call of a turn; where there is none, an invalid one."""
    return [_to_action(tools, call) for call in calls] or [
        FoundAction(tools.NO_ACTION, tools.advice)
    ]


def _to_action(tools: ToolTable, call: ToolCall) -> FoundAction:
    unreadable = f"the call cannot be read; {tools.advice}"
    problem = unreadable if call.name is None else tools.find_problem(call)
    return FoundAction(to_utf8(tools.to_action(call)), problem and to_utf8(problem))


def to_turn(*calls: ToolCall) -> dict[str, Any]:
    """Returns calls as an assistant's message."""
    functions = ({"name": call.name, "arguments": call.arguments} for call in calls)
    return to_message("assistant", "") | {
        "tool_calls": [{"type": "function", "function": function} for function in functions]
    }


def open_tool_chat(
    tokenizer: PreTrainedTokenizerBase, settings: Settings, eos_token_ids: Iterable[int]
) -> ToolChat:
    """Returns how a tokenizer's model calls an environment's tools. Raises: SettingsError."""
    tools = find_tools(settings.environment.id)
    all_kwargs = [*settings.stage_kwargs, settings.held_out_kwargs, *settings.warm_start_kwargs]
    for kwargs in all_kwargs:
        for name, value in tools.env_kwargs.items():
            if kwargs.get(name) != value:
                raise SettingsError(
                    f"model.tool_calls: environment.kwargs, in stages and evaluation too, need "
                    f"{name}={value!r}, or the prompt asks for other actions; got {kwargs!r}"
                )
        need_named_tools(settings.environment.id, tools, kwargs)
    return ToolChat(tokenizer, settings.model, tools, eos_token_ids)


def need_named_tools(env_id: str, tools: ToolTable, kwargs: Mapping[str, Any]) -> None:
    """Raises: SettingsError where a prompt speaks of tools and texts alone can be sent."""
    if tools is ANY_TEXT and _speaks_of_tools(kwargs):
        raise SettingsError(
            f"tool calls: {env_id} has only the tool act(action), whose argument is text: leave "
            "out prompt='tools'"
        )


def _speaks_of_tools(value: object) -> bool:
    """Returns whether arguments, those of sources included, ask for a prompt of tools."""
    if isinstance(value, Mapping):
        return value.get("prompt") == "tools" or any(map(_speaks_of_tools, value.values()))
    return isinstance(value, list | tuple) and any(map(_speaks_of_tools, value))
