import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentpeft.envs.errors import SettingsError
from agentpeft.policies.chat import ChatFormat, make_chat
from agentpeft.policies.config import Settings, TinySettings
from agentpeft.policies.tiny import build_tiny

CHATML = """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""
WITH_SYSTEM = "{{ '<|im_start|>system\\nBe good.<|im_end|>\\n' }}" + CHATML
STRIPS_THINK = """{%- for m in messages -%}
{%- set text = m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant'
   and not loop.last else m.content -%}
{%- if m.role == 'assistant' and loop.last and '</think>' not in text -%}
{%- set text = '<think>\\n\\n</think>\\n\\n' + text -%}
{%- endif -%}
{{ '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""
NUMBERS_TURNS = CHATML.replace("m.role + ", "m.role + (loop.index | string) + ")
CHANGES_THE_PAST = CHATML.replace("'<|im_end|>\\n'", "('<|im_end|>' if loop.last else '!')")
ONLY_USERS = "{{ raise_exception('no assistants') if messages | length > 1 }}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer(template=None):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0])
    fast.add_special_tokens({"additional_special_tokens": SPECIAL})
    fast.chat_template = template
    return fast


def ids_of(chat, text):
    return np.array(chat.tokenizer(text, add_special_tokens=False)["input_ids"])


def text_of(chat, ids):
    return chat.tokenizer.decode(ids.tolist())


@pytest.mark.parametrize("template", [CHATML, WITH_SYSTEM, STRIPS_THINK])
def test_turns_in_tokens_say_what_the_template_renders(template):
    chat = ChatFormat(make_tokenizer(template))
    ids = chat.begin("Add 1 and 2.")
    ids = np.concatenate([ids, chat.encode_action("3")])
    ids = np.concatenate([ids, chat.extend(ids, "Wrong.\n é")])
    messages = [("user", "Add 1 and 2."), ("assistant", "3"), ("user", "Wrong.\n é")]
    rendered = chat.tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in messages],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text_of(chat, ids) == rendered


def test_thoughts_stay_in_the_history_of_a_template_that_strips_them():
    chat = ChatFormat(make_tokenizer(STRIPS_THINK))
    action = chat.encode_action("<think>\nhm\n</think>\n\n4")
    delta = chat.extend(np.concatenate([chat.begin("2+2"), action]), "Yes.")
    expected = "\n<|im_start|>user\nYes.<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(chat, delta) == expected


def test_a_cut_turn_is_ended_before_the_observation():
    chat = ChatFormat(make_tokenizer(CHATML))
    cut, whole = ids_of(chat, "4"), chat.encode_action("4")
    end = ids_of(chat, "<|im_end|>")
    np.testing.assert_array_equal(
        chat.extend(cut, "Go."), np.concatenate([end, chat.extend(whole, "Go.")])
    )


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


def test_without_a_template_the_conversation_is_plain_text():
    chat = ChatFormat(make_tokenizer(), use_chat_template=False)
    ids = np.concatenate([chat.begin("1+1=?"), chat.encode_action("2")])
    ids = np.concatenate([ids, chat.extend(ids, "No.")])
    ids = np.concatenate([ids, ids_of(chat, "3")])
    ids = np.concatenate([ids, chat.extend(ids, "Yes.")])
    assert text_of(chat, ids) == "1+1=?\n2<|endoftext|>No.\n3\nYes.\n"


@pytest.mark.parametrize("template", [None, NUMBERS_TURNS, CHANGES_THE_PAST, ONLY_USERS])
def test_a_template_that_cannot_be_extended_is_refused(template):
    with pytest.raises(SettingsError, match="use_chat_template=false"):
        ChatFormat(make_tokenizer(template))


def test_a_tokenizer_without_any_stop_token_is_refused():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(SettingsError, match="end-of-sequence"):
        ChatFormat(tokenizer, use_chat_template=False)


@pytest.mark.parametrize(("eos", "more"), [(None, set()), (7, {7}), ([7, 9], {7, 9})])
def test_a_model_stops_where_its_own_generation_config_says(eos, more):
    base = build_tiny(TinySettings(hidden_size=32, num_layers=1, num_heads=2), ["some text"])
    before = make_chat(base, Settings()).stop_token_ids
    base.model.generation_config.eos_token_id = eos
    assert make_chat(base, Settings()).stop_token_ids == before | more
