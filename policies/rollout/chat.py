"""How prompts, sampled turns and observations become one sequence of tokens."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.messages import Ids
from agentpeft.policies.rollout.thoughts import find_action, is_thinking
from agentpeft.policies.settings.config import ModelSettings

PROMPT, ACTION, OBSERVATION = "Sentinelprompt", "Sentinelaction", "Sentinelobservation"
Messages = list[dict[str, Any]]
_DEFAULTS = ModelSettings()


@dataclass(frozen=True)
class FoundAction:
    """What the environment is told; `problem` is what the agent is told instead of its answer."""

    text: str
    problem: str | None = None

    def answer(self, observation: str) -> str:
        """Returns what the agent is told, where the environment said this."""
        return observation if self.problem is None else f"Invalid call: {self.problem}."


class ChatFormat:
    """Turns text into tokens at the ends of a conversation; what lies before is never touched.

    With a chat template, an observation's tokens are the template's text between the end of an
    assistant's turn and the beginning of the next one, taken from a rendering of sentinels.
    Without one, observations and actions follow each other as plain text, a line each.

    Text of prompts and observations is tokenised as it is: control tokens spelt out in it become
    control tokens.

    A thinking model's thoughts stay in the conversation as they were sampled, also where the
    template would strip them from its history; `find_action` leaves them out. A template may begin
    a thought itself, after the prompt and after each observation.
    """

    _between = "\n"
    """What stands between the answers to several actions of one turn."""
    _schemas: Sequence[dict[str, Any]] = ()
    """The tools that the template is given."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: ModelSettings = _DEFAULTS,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """`eos_token_ids`: further ones to stop at, such as the generation_config's.

        Of `model`, what says how it reads and writes. Raises: SettingsError where the template is
        missing, cannot be extended, has no place for what is set, or nothing stops.
        """
        self.tokenizer, self._model = tokenizer, model
        self._is_chat = model.use_chat_template
        self._closing, self._before, self._after = "\n", "", "\n"
        self._before_action, self._is_thought_opened = "", False
        if self._is_chat:
            self._check_template()
            self._closing, self._before, self._after = self._read_template()
            self._before_action, self._is_thought_opened = self._read_thoughts()
        end_of_turn = self._end_of_turn()
        stops = {*eos_token_ids, end_of_turn, tokenizer.eos_token_id} - {None}
        if not stops:
            raise SettingsError("the tokenizer has no end-of-sequence token: nothing could stop")
        self.stop_token_ids: frozenset[int] = frozenset(int(stop) for stop in stops)
        ends = (end_of_turn, tokenizer.eos_token_id, min(self.stop_token_ids))
        self.end_token_id: int = next(int(end) for end in ends if end is not None)
        """What a complete turn ends with."""

    def begin(self, prompt: str, system: str | None = None) -> Ids:
        """Returns a conversation's first tokens, up to where the first action begins.

        `system` stands in place of the system prompt. Raises: SettingsError where the template
        has no place for it.
        """
        system = system or self.system_prompt
        if not self._is_chat:
            lines = [*filter(None, [system]), prompt, ""]
            encoded = self.tokenizer("\n".join(lines), verbose=False)
            return np.array(encoded["input_ids"], np.int64)
        return self._encode(self._render([to_message("user", prompt)], asks=True, system=system))

    def extend(self, ids: Ids, *observations: str) -> Ids:
        """Returns the tokens between `ids`, which end with what was sampled, and the next action.

        Where the sampled ids did not end with a stop token, the end of the turn comes first. Each
        of the turn's actions has an observation.
        """
        is_ended = len(ids) > 0 and int(ids[-1]) in self.stop_token_ids
        closing = self._encode("" if is_ended else self._closing)
        answers = self._between.join(map(self._write_observation, observations))
        return np.concatenate([closing, self._encode(self._before + answers + self._after)])

    def decode(self, sampled: Ids) -> str:
        """Returns what was said: the text of exactly the sampled ids but for a final stop token."""
        is_ended = len(sampled) > 0 and int(sampled[-1]) in self.stop_token_ids
        ids = sampled[:-1] if is_ended else sampled
        return str(self.tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))

    def find_action(self, said: str) -> str:
        """Returns what the environment is told of a turn's text; of several actions, in lines."""
        return "\n".join(action.text for action in self.find_actions(said))

    def strip_thoughts(self, said: str) -> str:
        """Returns what follows a turn's last thought.

        What the template itself writes before an action, such as a space, is no part of it.
        """
        end = self._model.end_of_thought
        action = find_action(said, end, is_opened=self._is_thought_opened)
        return action.removeprefix(self._before_action)

    def find_actions(self, said: str) -> list[FoundAction]:
        """Returns what the environment is told of a turn's text, in order; it is never empty."""
        return [FoundAction(self.strip_thoughts(said))]

    def encode_action(self, action: str) -> Ids:
        """Returns the tokens of a complete turn that tells the environment an action."""
        return self.encode_turn(action)

    def encode_turn(self, text: str) -> Ids:
        """Returns the tokens of a complete turn, as if it had been sampled.

        A thought that the template opens, or writes empty before an action, is closed first; a
        text that ends a thought itself stands as it is.
        """
        end = self._model.end_of_thought
        before = "" if end and end in text else self._before_action
        return np.append(self._encode(before + text), self.end_token_id)

    @property
    def system_prompt(self) -> str | None:
        """What stands before the prompt; None is nothing."""
        return self._model.system_prompt

    def _write_observation(self, observation: str) -> str:
        return observation

    def _encode(self, text: str) -> Ids:
        if not text:
            return np.empty(0, np.int64)
        # Not verbose: how long a context may be is the engine's affair, which ends such an episode
        encoded = self.tokenizer(text, add_special_tokens=False, verbose=False)
        return np.array(encoded["input_ids"], np.int64)

    def _render(self, messages: Messages, asks: bool, system: str | None = None) -> str:
        system = system or self.system_prompt
        before = [to_message("system", system)] if system else []
        try:
            text = self.tokenizer.apply_chat_template(
                [*before, *messages],
                tokenize=False,
                add_generation_prompt=asks,
                tools=list(self._schemas) or None,
                **self._model.chat_template_kwargs,
            )
        except TemplateError as error:
            roles = "system, user and assistant" if before else "user and assistant"
            raise SettingsError(
                f"the chat template cannot render a conversation of {roles}: {error}; "
                "set model.use_chat_template=false"
            ) from error
        return str(text)

    def _check_template(self) -> None:
        """Raises: SettingsError where there is no template, or none for what the settings say."""
        if self.tokenizer.chat_template is None:
            raise SettingsError(
                "the tokenizer has no chat template; set model.use_chat_template=false"
            )
        template = self.tokenizer.get_chat_template()
        for name in self._model.chat_template_kwargs:
            if not re.search(rf"\b{re.escape(name)}\b", template):
                raise SettingsError(
                    f"model.chat_template_kwargs: the chat template does not read {name!r}"
                )
        system = self.system_prompt or ""
        if system.strip() not in self._render([to_message("user", PROMPT)], asks=True):
            raise SettingsError(
                "model.system_prompt: the chat template leaves it out; write it into the task's "
                "prompt, or set model.use_chat_template=false"
            )

    def _read_template(self) -> tuple[str, str, str]:
        """Returns an action's end of turn, and the texts before and after an observation."""
        first: Messages = [{"role": "user", "content": PROMPT}]
        action, observation = to_message("assistant", ACTION), to_message("user", OBSERVATION)
        earlier = [*first, to_message("assistant", "one"), to_message("user", "two")]
        ended = self._render([*first, action], asks=False).partition(ACTION)[2]
        tails = {
            self._render([*history, action, observation], asks=True).partition(ACTION)[2]
            for history in (first, earlier)
        }
        before, found, after = min(tails).partition(OBSERVATION)
        if len(tails) > 1 or not found or not before.startswith(ended):
            raise SettingsError(
                "the chat template cannot be extended turn by turn: what it writes after an "
                "assistant's turn depends on what came before; set model.use_chat_template=false"
            )
        return self._split_end(before, after)

    def _read_thoughts(self) -> tuple[str, bool]:
        """Returns what precedes an action without thoughts, and whether a thought is opened.

        Both are seen behind the prompt: where the model is asked, and in a turn that is over.
        """
        prompt, end = to_message("user", PROMPT), self._model.end_of_thought
        asked = self._render([prompt], asks=True).rpartition(PROMPT)[2]
        answered = self._render([prompt, to_message("assistant", ACTION)], asks=False)
        written = answered.partition(ACTION)[0].rpartition(PROMPT)[2]
        if written.startswith(asked):
            before = written[len(asked) :]
        elif is_thinking(asked, end):
            # The turn that is over has no thought, or has one of another form than was opened
            before = end + written.rpartition(end)[2] if end in written else f"\n{end}\n\n"
        else:
            before = ""
        return before, is_thinking(asked, end)

    def _split_end(self, before: str, after: str) -> tuple[str, str, str]:
        """Returns `before` cut after the end-of-turn token (if that is one token), and `after`."""
        ids = self._encode(before).tolist()
        if not ids or ids[0] not in self.tokenizer.added_tokens_decoder:
            return "", before, after
        end = str(self.tokenizer.convert_ids_to_tokens(ids[0]))
        return (end, before[len(end) :], after) if before.startswith(end) else ("", before, after)

    def _end_of_turn(self) -> int | None:
        ids = self._encode(self._closing) if self._is_chat else np.empty(0, np.int64)
        return int(ids[0]) if len(ids) == 1 else None


class TextChat(ChatFormat):
    """A conversation without a tokenizer: ids are characters, and every turn ends with `END`."""

    END = "\U0010ffff"
    """A character that is none: Unicode leaves it to programs."""
    tools: Sequence[dict[str, Any]] = ()
    """What the model can call, in OpenAI's format."""

    def __init__(self, model: ModelSettings = _DEFAULTS) -> None:
        """`model` says where thoughts end and what the system prompt is."""
        self._model, self._before_action, self._is_thought_opened = model, "", False
        self._closing, self._before, self._after = self.END, "", self.END
        self.end_token_id = ord(self.END)
        self.stop_token_ids = frozenset({self.end_token_id})

    def begin(self, prompt: str, system: str | None = None) -> Ids:
        """Returns the first turn; a system message would be a field of the request, not a turn."""
        del system
        return self.encode_action(prompt)

    def decode(self, sampled: Ids) -> str:
        """Returns the text, without ends of turns."""
        return "".join(map(chr, sampled)).replace(self.END, "")

    def encode_message(self, message: Mapping[str, Any]) -> Ids:
        """Returns the turn of a message of OpenAI's format."""
        return self.encode_turn(message.get("content") or "")

    def to_messages(self, ids: Ids) -> Messages:
        """Returns a conversation whose turns are whole, the system's message first."""
        roles = itertools.cycle(("user", "assistant"))
        system = [to_message("system", self.system_prompt)] if self.system_prompt else []
        return [*system, *map(to_message, roles, self.split(ids))]

    def split(self, ids: Ids) -> list[str]:
        """Returns the texts of whole turns; user and assistant speak by turns, the user first."""
        return "".join(map(chr, ids)).split(self.END)[:-1]

    def _encode(self, text: str) -> Ids:
        return np.fromiter(map(ord, text), np.int64, len(text))


def to_message(role: str, content: str) -> dict[str, Any]:
    """Returns a message of a conversation, as templates take it."""
    return {"role": role, "content": content}
