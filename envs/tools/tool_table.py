"""`ToolTable`: an environment's actions as tools with names and arguments.

An environment has one table, from which all interfaces are made: OpenAI's tools, a chat template's
tools, MCP, TRL's methods. A call becomes the environment's action, which is text as ever, so that
grading does not depend on the interface.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, ClassVar

_MAX_NUMBER_BITS = 10_000
_SHOWN_CHARS = 60


@dataclass(frozen=True)
class ToolCall:
    """An agent's call. `arguments` are as it gave them, perhaps wrong or no mapping at all."""

    name: object
    arguments: object

    @classmethod
    def from_openai(cls, tool_call: Mapping[str, Any]) -> "ToolCall":
        """Returns one of the `tool_calls` of a message in OpenAI's format, however malformed."""
        match tool_call.get("function"):
            case {"name": name, "arguments": str() as text}:
                arguments = read_json(text or "{}")
                return cls(name, text if arguments is None else arguments)
            case {"name": name}:
                return cls(name, {})
        return cls(None, None)


class NumberText(str):
    """A number as a JSON text has it: it may be an answer."""

    __slots__ = ()


def read_json(text: str) -> object:
    """Returns the value of a JSON text, its numbers as `NumberText`; None of other text."""
    number = NumberText
    try:
        value: object = json.loads(text, parse_int=number, parse_float=number, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return value


@dataclass(frozen=True)
class Tool:
    """One tool. `write` makes a call's action, all of whose parameters are text.

    `parameters`: what each is, by name. Those that are not `required` may be left out.
    """

    name: str
    description: str
    parameters: Mapping[str, str]
    required: tuple[str, ...]
    write: Callable[..., str]

    @classmethod
    def build(cls, function: Callable[..., str]) -> "Tool":
        """Returns the tool of a function: its name, its Google-style docstring, its parameters."""
        about, _, arguments = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
        entries = re.findall(r"^(\w+): ((?:.|\n +)*)", dedent(arguments.partition("\n\n")[0]), re.M)
        texts = {name: " ".join(text.split()) for name, text in entries}
        signature = inspect.signature(function).parameters
        required = tuple(name for name, p in signature.items() if p.default is p.empty)
        parameters = {name: texts[name] for name in signature}
        return cls(function.__name__, " ".join(about.split()), parameters, required, function)

    @property
    def schema(self) -> dict[str, Any]:
        """The parameters as JSON schema."""
        texts = {n: {"type": "string", "description": text} for n, text in self.parameters.items()}
        return {
            "type": "object",
            "properties": texts,
            "required": list(self.required),
            "additionalProperties": False,
        }


class ToolTable:
    """The tools of an environment, by name.

    An agent may send anything: a malformed call is the empty action, which is not valid in any
    environment of the suite, and `find_problem` says in words what was wrong.
    """

    NO_ACTION: ClassVar[str] = ""

    def __init__(
        self,
        *functions: Callable[..., str],
        find_call: Callable[[str], ToolCall],
        env_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        """`functions` return a call's action; `find_call` returns the call of a valid action.

        `env_kwargs`: arguments with which an environment speaks of these tools in its prompt.
        """
        self._tools = {tool.name: tool for tool in map(Tool.build, functions)}
        self.find_call = find_call
        self.env_kwargs = dict(env_kwargs or {})

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    @property
    def advice(self) -> str:
        """Advice for an agent that called no tool.

        >>> ANY_TEXT.advice
        'call a tool: act(action)'
        """
        return "call a tool: " + ", ".join(f"{t.name}({', '.join(t.parameters)})" for t in self)

    def to_openai(self) -> list[dict[str, Any]]:
        """Returns the tools as OpenAI's API, and chat templates, take them."""
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.schema}
            for tool in self
        ]
        return [{"type": "function", "function": function} for function in functions]

    def find_problem(self, call: ToolCall) -> str | None:
        """Returns what is wrong with a call, in words for the agent; None where nothing is."""
        tool = self._tools.get(call.name) if isinstance(call.name, str) else None
        if tool is None:
            return f"no tool {_shown(call.name)}; {self.advice}"
        if not isinstance(call.arguments, Mapping):
            return f"{tool.name}: arguments must be a JSON object, got {_shown(call.arguments)}"
        for name in call.arguments:
            if name not in tool.parameters:
                return f"{tool.name} has no argument {_shown(name)}; {self.advice}"
        for name in tool.parameters:
            value = call.arguments.get(name)
            if value is None and name in tool.required:
                return f"{tool.name} needs the argument {name!r}"
            if value is not None and _to_text(value) is None:
                return f"{tool.name}: {name!r} must be a string, got {_shown(value)}"
        return None

    def to_action(self, call: ToolCall) -> str:
        """Returns the action of a call, `NO_ACTION` of a malformed one."""
        if self.find_problem(call) is not None:
            return self.NO_ACTION
        assert isinstance(call.arguments, Mapping)  # noqa: S101 (or there were a problem)
        values = {n: _to_text(v) for n, v in call.arguments.items() if v is not None}
        return self._tools[str(call.name)].write(**values)


def _to_text(value: object) -> str | None:
    """Returns an argument as text, where it is text or a number; else None."""
    match value:
        case str():
            return value
        case bool():
            return None
        case int() if value.bit_length() <= _MAX_NUMBER_BITS:
            return str(value)
        case float():
            return repr(value)
    return None


def _shown(value: object) -> str:
    """Returns a value as JSON, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def act(action: str) -> str:
    """Acts in the environment.

    Args:
        action: The whole text of the action, in the form that the task asks for.
    """
    return action


ANY_TEXT = ToolTable(act, find_call=lambda action: ToolCall("act", {"action": action}))
"""One tool whose argument is the action: for environments without tools of their own."""


def find_tools(env_id: str) -> ToolTable:
    """Returns the tools of a registered environment. Raises: SettingsError on an unknown id."""
    from agentpeft.envs.core.text_env import TextEnv
    from agentpeft.envs.registration import find_creator

    creator = find_creator(env_id)
    if isinstance(creator, type) and issubclass(creator, TextEnv):
        return creator.get_tools()
    return ANY_TEXT
