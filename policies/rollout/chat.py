"""How prompts, sampled turns and observations become one sequence of tokens."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.policies.messages import Ids
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import ModelSettings, Settings
from agentpeft.policies.thoughts import find_action, is_thinking

PROMPT, ACTION, OBSERVATION = "Sentinelprompt", "Sentinelaction", "Sentinelobservation"
Messages = list[dict[str, Any]]
_DEFAULTS = ModelSettings()
_WITHOUT_TEMPLATE = "set model.use_chat_template=false"
_CHARS_PER_TOKEN = 8
"""More than most texts have: of a long text so much is tokenised first."""


@dataclass(frozen=True)
class FoundAction:
    """What the environment is told; `problem` is what the agent is told instead of its answer."""

    text: str
    problem: str | None = None

    def answer(self, observation: str) -> str:
        """Returns what the agent is told of an observation."""
        return observation if self.problem is None else f"Invalid call: {self.problem}."


class ChatFormat:
    """Turns text into tokens at the ends of a conversation; what lies before is never touched.

    With a chat template, an action or an observation is what the template writes of it, which may
    strip it; an observation brings all that stands between the end of an assistant's turn and the
    beginning of the next one. Without a template they follow each other as plain text, a line each.

    A text gets the tokens that it has behind what precedes it: many tokenizers put a space before a
    text that stands alone. So a conversation has the tokens of its whole text, except where one of
    them would reach over such a border. Control tokens spelt out in a text become control tokens.

    A thinking model's thoughts stay in the conversation as they were sampled, also where the
    template would strip them from its history; `find_action` leaves them out. A template may begin
    a thought itself, after the prompt and after each observation.
    """

    _schemas: Sequence[dict[str, Any]] = ()
    """The tools that the template is given."""
    max_context_tokens: int | None = None
    """The engine's limit. Of a text that overfills it alone only the beginning is tokenised."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: ModelSettings = _DEFAULTS,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """`eos_token_ids`: further ones to stop at, such as the generation_config's.

        Raises: SettingsError where the template is missing, cannot be extended, has no place for
        what is set, or nothing stops.
        """
        self.tokenizer, self._model = tokenizer, model
        self._is_chat, self._heads = model.use_chat_template, dict[str, Ids]()
        self._header = self._closing = "\n"
        self._before_action, self._is_thought_opened = "", False
        end_of_turn = None
        if self._is_chat:
            self._check_template()
            self._closing, end_of_turn = self._read_end()
            self._header, self._before_action, self._is_thought_opened = self._read_header()
        stops = {*eos_token_ids, end_of_turn, tokenizer.eos_token_id} - {None}
        if not stops:
            raise SettingsError("the tokenizer has no end-of-sequence token: nothing could stop")
        self.stop_token_ids: frozenset[int] = frozenset(int(stop) for stop in stops)
        ends = (end_of_turn, tokenizer.eos_token_id, min(self.stop_token_ids))
        self.end_token_id: int = next(int(end) for end in ends if end is not None)
        """What a complete turn ends with."""
        self._stop_texts = {
            token_id: str(token.content)
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token_id in self.stop_token_ids
        }

    def begin(self, prompt: str, system: str | None = None) -> Ids:
        """Returns a conversation's first tokens, up to where the first action begins.

        `system` replaces the system prompt. Raises: SettingsError without a place for it.
        """
        if self._is_chat:
            return self._encode(self._render_prompt(prompt, system))
        lines = [*filter(None, [system or self.system_prompt]), prompt, ""]
        return np.concatenate([self._opening, self._encode("\n".join(lines))])

    def extend(self, ids: Ids, *observations: str) -> Ids:
        """Returns the tokens between `ids`, which end with what was sampled, and the next action.

        Where `ids` do not end with a stop token, the end of the turn comes first. There is an
        observation for each of the turn's actions.
        """
        last, answers = int(ids[-1]) if len(ids) else None, self._write_answers(observations)
        if last in self.stop_token_ids:
            return self._encode_after(self._stop_texts.get(last, self._header), answers)
        if not (self._is_chat and self._closing):
            return self._encode_after(ACTION, self._closing + answers)
        end = self._encode_ended(ACTION, "")
        return np.concatenate([end, self.extend(end, *observations)])

    def decode(self, sampled: Ids) -> str:
        """Returns what was said: the text of exactly the sampled ids but for a final stop token."""
        is_ended = len(sampled) > 0 and int(sampled[-1]) in self.stop_token_ids
        ids = sampled[:-1] if is_ended else sampled
        return str(self.tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))

    def find_action(self, said: str) -> str:
        """Returns what the environment is told of a turn's text; of several actions, in lines."""
        return "\n".join(action.text for action in self.find_actions(said))

    def strip_thoughts(self, said: str) -> str:
        """Returns what follows the last thought, without what the template writes around it."""
        end = self._model.end_of_thought
        action = find_action(said, end, is_opened=self._is_thought_opened)
        before, after = self._around_action
        return action.removeprefix(before).removesuffix(after)

    def find_actions(self, said: str) -> list[FoundAction]:
        """Returns what the environment is told of a turn's text, in order; it is never empty."""
        return [FoundAction(self.strip_thoughts(said))]

    def encode_action(self, action: str) -> Ids:
        """Returns the tokens of a complete turn that tells the environment an action."""
        return self.encode_turn(self._write_action(action))

    def encode_turn(self, text: str) -> Ids:
        """Returns the tokens of a complete turn, as if it had been sampled.

        A thought that the template opens, or writes empty before an action, is closed first; a
        text that ends a thought itself stands as it is.
        """
        end, before = self._model.end_of_thought, self._before_action
        if end and end in before and end in text:
            before = ""
        return self._encode_ended(self._header, before + text)

    @property
    def system_prompt(self) -> str | None:
        """What stands before the prompt; None is nothing."""
        return self._model.system_prompt

    @cached_property
    def _opening(self) -> Ids:
        """What the tokenizer puts before a text, such as BOS: so a conversation begins."""
        text = self._encode(ACTION).tolist()
        whole = self._encode(ACTION, adds_special=True).tolist()
        starts = (i for i in range(len(whole)) if whole[i : i + len(text)] == text)
        return np.array(whole[: next(starts, 0)], np.int64)

    @cached_property
    def _around_action(self) -> tuple[str, str]:
        """What `decode` returns before and after an action in a turn of the template's form."""
        before, action, after = self.decode(self.encode_turn(ACTION)).partition(ACTION)
        return (before, after) if action else ("", "")

    def _write_action(self, action: str) -> str:
        """Returns an action as the template strips it; its thoughts stay, which many would drop."""
        if not self._is_chat:
            return action
        before, _, after = self._render_turn_of(ACTION).partition(ACTION)
        written = self._render_turn_of(action).removeprefix(before).removesuffix(after)
        return written if written.strip() == action.strip() else action

    def _write_answers(self, observations: Sequence[str]) -> str:
        """Returns the text between the end of a turn and the next action."""
        text = "\n".join(observations)
        if not self._is_chat:
            return text + self._closing
        messages = [to_message("user", PROMPT), to_message("assistant", ACTION)]
        rendered = self._render([*messages, to_message("user", text)], asks=True)
        return rendered.partition(ACTION)[2].removeprefix(self._closing)

    def _encode_ended(self, context: str, text: str) -> Ids:
        """Returns the tokens of a text behind another, and those that end a turn."""
        closing = (self._is_chat and self._closing) or self._stop_texts.get(self.end_token_id, "")
        ids = self._encode_after(context, text + closing)
        if len(ids) and ids[-1] == self.end_token_id:
            return ids
        # Some tokenizers do not take the end's text for its token right behind another text
        return np.append(self._encode_after(context, text), self.end_token_id)

    def _encode_after(self, context: str, text: str) -> Ids:
        """Returns the tokens that a text has behind another.

        Where a token would reach over the border between the two, those behind a line break or a
        letter: a text that stands alone may get a space in front.
        """
        for before in (context, "\n", "a"):
            if before not in self._heads:
                self._heads[before] = self._encode(before)
            head, ids = self._heads[before], self._encode(before + text)
            if np.array_equal(ids[: len(head)], head):
                return ids[len(head) :]
        return self._encode(text)

    def _encode(self, text: str, *, adds_special: bool = False) -> Ids:
        """Returns the tokens of a text; of one that overfills the context, of its beginning."""
        if not text:
            return np.empty(0, np.int64)
        text, limit = to_utf8(text), self.max_context_tokens
        num_chars = len(text) if limit is None else _CHARS_PER_TOKEN * limit
        options = {"add_special_tokens": adds_special, "verbose": False}
        while True:
            # Not verbose: the engine ends an episode whose context is full
            ids = self.tokenizer(text[:num_chars], **options)["input_ids"]
            if num_chars >= len(text) or (limit is not None and len(ids) > limit):
                return np.array(ids, np.int64)
            num_chars *= 4

    def _render_prompt(self, prompt: str, system: str | None = None) -> str:
        """Returns a conversation's beginning. Raises: SettingsError without a place for `system`.

        No other rendering has a system prompt: some templates move it to the last message.
        """
        messages, text = [to_message("user", prompt)], system or self.system_prompt or ""
        if text:
            messages.insert(0, to_message("system", text))
        rendered = self._render(messages, asks=True)
        if text.strip() not in rendered:
            name = "a chat's system message" if system else "model.system_prompt"
            raise SettingsError(
                f"{name}: the chat template leaves it out; write it into the prompt, or "
                f"{_WITHOUT_TEMPLATE}"
            )
        return rendered

    def _render(self, messages: Messages, asks: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=asks,
                tools=list(self._schemas) or None,
                **self._model.chat_template_kwargs,
            )
        except TemplateError as error:
            system = "system, " if messages[0]["role"] == "system" else ""
            raise SettingsError(
                f"the chat template cannot render a conversation of {system}user and assistant: "
                f"{error}; {_WITHOUT_TEMPLATE}"
            ) from error
        return str(text)

    def _check_template(self) -> None:
        """Raises: SettingsError where there is no template, or none for what the settings say."""
        if self.tokenizer.chat_template is None:
            raise SettingsError(f"the tokenizer has no chat template; {_WITHOUT_TEMPLATE}")
        template = self.tokenizer.get_chat_template()
        for name in self._model.chat_template_kwargs:
            if not re.search(rf"\b{re.escape(name)}\b", template):
                raise SettingsError(
                    f"model.chat_template_kwargs: the chat template does not read {name!r}"
                )
        if PROMPT not in self._render_prompt(PROMPT):
            raise SettingsError(f"the chat template leaves out the prompt; {_WITHOUT_TEMPLATE}")

    def _read_end(self) -> tuple[str, int | None]:
        """Returns what the template writes at the end of an action, and the id that ends it.

        That is a token of its own, maybe behind space; where there is none, nothing and None.
        """
        first = [to_message("user", PROMPT)]
        action, observation = to_message("assistant", ACTION), to_message("user", OBSERVATION)
        earlier = [*first, to_message("assistant", "one"), to_message("user", "two")]
        ended = self._render([*first, action], asks=False).partition(ACTION)[2]
        tails = {
            self._render([*history, action, observation], asks=True).partition(ACTION)[2]
            for history in (first, earlier)
        }
        before, separator, _ = min(tails).partition(OBSERVATION)
        closing, end_of_turn = self._find_end(before)
        # A template may end the last turn with a token more, as Phi 3's
        is_ended = before.startswith(ended) or (closing and ended.startswith(closing))
        if len(tails) > 1 or not separator or not is_ended:
            raise SettingsError(
                "the chat template cannot be extended turn by turn: what it writes after an "
                f"assistant's turn depends on what came before; {_WITHOUT_TEMPLATE}"
            )
        return closing, end_of_turn

    def _find_end(self, text: str) -> tuple[str, int | None]:
        """Returns the control token that a text begins with, and the space before it; its id."""
        ending, added = text.lstrip(), self.tokenizer.added_tokens_decoder
        ends = {str(token.content): token_id for token_id, token in added.items()}
        matching = [end for end in ends if end.strip() and ending.startswith(end)]
        if not matching:
            return "", None
        end = max(matching, key=len)
        return text[: len(text) - len(ending)] + end, ends[end]

    def _read_header(self) -> tuple[str, str, bool]:
        """Returns what a turn is asked for with, what precedes an action, if a thought is opened.

        All are seen behind the prompt: where the model is asked, and in a turn that is over. What
        precedes an action without thoughts is what only the latter has.
        """
        prompt, end = to_message("user", PROMPT), self._model.end_of_thought
        asked = self._render([prompt], asks=True).rpartition(PROMPT)[2]
        written = self._render_turn_of(ACTION).partition(ACTION)[0]
        if written.startswith(asked):
            before = written[len(asked) :]
        elif is_thinking(asked, end):
            # The turn that is over has no thought, or has one of another form than was opened
            before = end + written.rpartition(end)[2] if end in written else f"\n{end}\n\n"
        else:
            before = ""
        return PROMPT + asked, before, is_thinking(asked, end)

    def _render_turn_of(self, action: str) -> str:
        """Returns what the template writes behind a prompt, of a turn that is over."""
        messages = [to_message("user", PROMPT), to_message("assistant", action)]
        return self._render(messages, asks=False).partition(PROMPT)[2]


def to_message(role: str, content: str) -> dict[str, Any]:
    """Returns a message of a conversation, as templates take it."""
    return {"role": role, "content": content}


def open_chat(
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    eos_token_ids: Iterable[int] = (),
    model_limit: int | None = None,
) -> ChatFormat:
    """Returns how a tokenizer's model reads and writes in a run.

    `model_limit`: the tokens that the model can read, None where it is not known. Raises:
    SettingsError.
    """
    chat: ChatFormat
    if settings.model.tool_calls:
        from agentpeft.policies.rollout.tool_chat import open_tool_chat

        chat = open_tool_chat(tokenizer, settings, eos_token_ids)
    else:
        chat = ChatFormat(tokenizer, settings.model, eos_token_ids)
    if model_limit is not None:
        chat.max_context_tokens = settings.env_runners.limit_context(model_limit)
    return chat


def make_chat(base: PolicyBase, settings: Settings) -> ChatFormat:
    """Returns how a model reads and writes, which stops where its own config says."""
    model_limit = base.model.config.get_text_config().max_position_embeddings
    return open_chat(base.tokenizer, settings, base.stop_token_ids, model_limit)
