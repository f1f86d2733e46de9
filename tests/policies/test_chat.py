import numpy as np
import pytest
from chat_templates import make_tokenizer

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.rollout.chat import ChatFormat, make_chat
from agentpeft.policies.settings.config import ModelSettings, Settings, TinySettings

CHATML = """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""
NUMBERS_TURNS = CHATML.replace("m.role + ", "m.role + (loop.index | string) + ")
CHANGES_THE_PAST = CHATML.replace("'<|im_end|>\\n'", "('<|im_end|>' if loop.last else '!')")
PLAIN = ModelSettings(use_chat_template=False)
ONLY_USERS = "{{ raise_exception('no assistants') if messages | length > 1 }}"


def ids_of(chat, text):
    return np.array(chat.tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("header", [" ", "<|im_start|>final: "])
def test_what_a_template_writes_before_an_action_is_imitated_and_no_part_of_it(header):
    template = CHATML.replace("+ m.content", f"+ (m.role == 'assistant') * '{header}' + m.content")
    chat = ChatFormat(make_tokenizer(template))
    said = chat.decode(chat.encode_action("3"))
    assert (said, chat.find_action(said), chat.find_action("3")) == (f"{header}3", "3", "3")


def test_other_stop_tokens_end_a_turn_too():
    tokenizer = make_tokenizer(CHATML)
    chat = ChatFormat(tokenizer, eos_token_ids=[7])
    named = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert chat.stop_token_ids == {7, *named}
    assert chat.end_token_id == named[1]
    np.testing.assert_array_equal(
        chat.extend(np.array([5, 7]), "a"), chat.extend(np.array([5, named[1]]), "a")
    )


def test_an_action_is_the_text_of_exactly_the_sampled_ids():
    chat = ChatFormat(make_tokenizer(CHATML))
    action = "  SELECT 'é' ,\n 1 "
    assert chat.decode(chat.encode_action(action)) == action
    assert chat.decode(chat.encode_action(action)[:-1]) == action
    assert chat.decode(ids_of(chat, "a<|im_start|>b")) == "a<|im_start|>b"


@pytest.mark.parametrize("template", [None, NUMBERS_TURNS, CHANGES_THE_PAST, ONLY_USERS])
def test_a_template_that_cannot_be_extended_is_refused(template):
    with pytest.raises(SettingsError, match="use_chat_template=false"):
        ChatFormat(make_tokenizer(template))


def test_a_tokenizer_without_any_stop_token_is_refused():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(SettingsError, match="end-of-sequence"):
        ChatFormat(tokenizer, PLAIN)


@pytest.mark.parametrize(("eos", "more"), [(None, set()), (7, {7}), ([7, 9], {7, 9})])
def test_a_model_stops_where_its_own_generation_config_says(eos, more):
    base = build_tiny(TinySettings(hidden_size=32, num_layers=1), ["some text"])
    before = make_chat(base, Settings()).stop_token_ids
    base.model.generation_config.eos_token_id = eos
    assert make_chat(base, Settings()).stop_token_ids == before | more


def test_a_row_s_own_system_message_stands_in_place_of_the_settings():
    chat = ChatFormat(make_tokenizer(CHATML), ModelSettings(system_prompt="Mine."))
    own, other = (chat.decode(chat.begin("Go.", system)) for system in (None, "Theirs."))
    assert "Mine." in own and "Theirs." in other and "Mine." not in other


@pytest.mark.parametrize("uses_template", [True, False])
def test_nothing_is_said_of_a_text_longer_than_the_tokenizers_limit(uses_template):
    tokenizer = make_tokenizer(CHATML)
    tokenizer.model_max_length = 4
    chat = ChatFormat(tokenizer, ModelSettings(use_chat_template=uses_template))
    ids = chat.begin("one two three four five six seven")
    assert len(ids) > 4
    assert not tokenizer.deprecation_warnings  # which transformers has said once


@pytest.mark.parametrize("settings", [ModelSettings(), PLAIN])
@pytest.mark.parametrize("unit", ["x", "x y ", "7", "\u4e2d", "\n", "\ud83d"])
def test_of_a_text_that_overfills_the_context_the_beginning_is_tokenised(unit, settings):
    chat = ChatFormat(make_tokenizer(CHATML), settings)
    text = unit * (200_000 // len(unit))
    whole = chat.begin(text), chat.extend(np.array([5]), text)
    for limit in (10, 1000):
        chat.max_context_tokens = limit
        both = chat.begin(text), chat.extend(np.array([5]), text)
        for cut, full in zip(both, whole, strict=True):
            assert limit < len(cut) <= len(full) and len(cut) < 40 * limit + 10
    chat.max_context_tokens = len(whole[0])
    np.testing.assert_array_equal(chat.begin(text), whole[0])


@pytest.mark.parametrize("text", ["\ud83d", "a \udc80 b", "\ude00\ud83d", "é\udfff"])
def test_half_a_surrogate_pair_becomes_a_question_mark(text):
    plain = "".join("?" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    chat = ChatFormat(make_tokenizer(CHATML))
    for write in (chat.begin, chat.encode_action, lambda said: chat.extend(np.array([5]), said)):
        np.testing.assert_array_equal(write(text), write(plain))
