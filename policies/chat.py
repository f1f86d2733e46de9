"""How prompts, sampled turns and observations become one sequence of tokens."""

from collections.abc import Iterable

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from agentpeft.envs.errors import SettingsError
from agentpeft.policies.config import Settings
from agentpeft.policies.policy_base import PolicyBase
from agentpeft.policies.samples import Ids

PROMPT, ACTION, OBSERVATION = "Sentinelprompt", "Sentinelaction", "Sentinelobservation"
Messages = list[dict[str, str]]


class ChatFormat:
    """Turns text into tokens at the ends of a conversation; what lies before is never touched.

    With a chat template, an observation's tokens are the template's text between the end of an
    assistant's turn and the beginning of the next one, taken from a rendering of sentinels.
    Without one, observations and actions follow each other as plain text, a line each.

    Text of prompts and observations is tokenised as it is: control tokens spelt out in it become
    control tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        use_chat_template: bool = True,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """`eos_token_ids`: further ones to stop at, such as the generation_config's.

        Raises: SettingsError where the template is missing, cannot be extended, or nothing stops.
        """
        self.tokenizer = tokenizer
        self._is_chat = use_chat_template
        self._closing, self._before, self._after = "\n", "", "\n"
        if use_chat_template:
            self._closing, self._before, self._after = self._read_template()
        end_of_turn = self._end_of_turn()
        stops = {*eos_token_ids, end_of_turn, tokenizer.eos_token_id} - {None}
        if not stops:
            raise SettingsError("the tokenizer has no end-of-sequence token: nothing could stop")
        self.stop_token_ids: frozenset[int] = frozenset(int(stop) for stop in stops)
        ends = (end_of_turn, tokenizer.eos_token_id, min(self.stop_token_ids))
        self.end_token_id: int = next(int(end) for end in ends if end is not None)
        """What a complete turn ends with."""

    def begin(self, prompt: str) -> Ids:
        """Returns a conversation's first tokens, up to where the first action begins."""
        if not self._is_chat:
            return np.array(self.tokenizer(prompt + "\n")["input_ids"], np.int64)
        return self._encode(self._render([{"role": "user", "content": prompt}], asks=True))

    def extend(self, ids: Ids, observation: str) -> Ids:
        """Returns the tokens between `ids`, which end with what was sampled, and the next action.

        Where the sampled ids did not end with a stop token, the end of the turn comes first.
        """
        is_ended = len(ids) > 0 and int(ids[-1]) in self.stop_token_ids
        closing = self._encode("" if is_ended else self._closing)
        return np.concatenate([closing, self._encode(self._before + observation + self._after)])

    def decode(self, sampled: Ids) -> str:
        """Returns the action: the text of exactly the sampled ids but for a final stop token."""
        is_ended = len(sampled) > 0 and int(sampled[-1]) in self.stop_token_ids
        ids = sampled[:-1] if is_ended else sampled
        return str(self.tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))

    def encode_action(self, action: str) -> Ids:
        """Returns the tokens of a complete turn, as if it had been sampled."""
        return np.append(self._encode(action), self.end_token_id)

    def _encode(self, text: str) -> Ids:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return np.array(ids, np.int64)

    def _render(self, messages: Messages, asks: bool) -> str:
        if self.tokenizer.chat_template is None:
            raise SettingsError(
                "the tokenizer has no chat template; set model.use_chat_template=false"
            )
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=asks
            )
        except TemplateError as error:
            raise SettingsError(
                f"the chat template cannot render a conversation of user and assistant: {error}; "
                "set model.use_chat_template=false"
            ) from error
        return str(text)

    def _read_template(self) -> tuple[str, str, str]:
        """Returns an action's end of turn, and the texts before and after an observation."""
        first: Messages = [{"role": "user", "content": PROMPT}]
        action, observation = _message("assistant", ACTION), _message("user", OBSERVATION)
        earlier = [*first, _message("assistant", "one"), _message("user", "two")]
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


def make_chat(base: PolicyBase, settings: Settings) -> ChatFormat:
    """Returns how a model reads and writes, which stops where its own config says."""
    return ChatFormat(base.tokenizer, settings.model.use_chat_template, base.stop_token_ids)


class TextChat(ChatFormat):
    """A conversation without a tokenizer: ids are characters, and every turn ends with `END`."""

    END = "\U0010ffff"
    """A character that is none: Unicode leaves it to programs."""

    def __init__(self) -> None:
        self._closing, self._before, self._after = self.END, "", self.END
        self.end_token_id = ord(self.END)
        self.stop_token_ids = frozenset({self.end_token_id})

    def begin(self, prompt: str) -> Ids:
        """Returns the first turn."""
        return self.encode_action(prompt)

    def decode(self, sampled: Ids) -> str:
        """Returns the text, without ends of turns."""
        return "".join(map(chr, sampled)).replace(self.END, "")

    def split(self, ids: Ids) -> list[str]:
        """Returns the texts of whole turns; user and assistant speak by turns, the user first."""
        return "".join(map(chr, ids)).split(self.END)[:-1]

    def _encode(self, text: str) -> Ids:
        return np.fromiter(map(ord, text), np.int64, len(text))


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
