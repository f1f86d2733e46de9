"""A conversation's tokens are those of its whole text, whatever the tokenizer and the template."""

import json
import re
from itertools import product

import numpy as np
import pytest
import word_env  # noqa: F401 (it registers an environment)
from chat_templates import BEFORE_ACTION, TEMPLATES, TOOL_TEMPLATES
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_families import (
    ADDED,
    BOS,
    EOS,
    FAMILIES,
    MODEL_TEMPLATES,
    STRIPS,
    SYSTEM_LAST,
    make_family,
)

from agentpeft.envs import SettingsError
from agentpeft.envs.db_bench.tools import TOOLS
from agentpeft.envs.tools.tool_table import ToolCall
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.chat_rows import chat_groups
from agentpeft.policies.rollout.oracle import play_oracle
from agentpeft.policies.rollout.scripted_play import make_text_env
from agentpeft.policies.rollout.tool_chat import ToolChat
from agentpeft.policies.settings.config import ModelSettings

SQL = "Action: Operation\n```sql\nSELECT 1;\n```"
TALKS = [
    ["How many users?", SQL, "[(1,)]", "Action: Answer"],
    ["1+2=", "3", "Wrong.", "Act: é 😀"],
    ["Go.", "(a)", "", "_", "ok\n\nor not", "user"],
    [" Go ", " Action: spaces ", "\tNo. ", "Action:\n\n"],
]
EXACT = [family for family in FAMILIES if family != "word piece"]
"""Whose tokens say every text; WordPiece's forget space."""
STRIPPING = ("llama2", "llama3", "gemma", "strips")
EVERY = [(family, name) for family in FAMILIES for name in MODEL_TEMPLATES]
_CONTROL = re.compile(r"<\|[^|<]+\|>|</?(?:start|end)_of_turn>|<turn\|>|<\|turn>")


def play(chat, texts):
    """Returns the tokens of a conversation, and those of each turn."""
    ids, turns = chat.begin(texts[0]), []
    for number, text in enumerate(texts[1:]):
        delta = chat.extend(ids, text) if number % 2 else chat.encode_action(text)
        ids = np.concatenate([ids, delta])
        if number % 2 == 0:
            turns.append(delta)
    return ids, turns


def encode(chat, text):
    return chat.tokenizer(text, add_special_tokens=False)["input_ids"]


def render(chat, texts, *, asks=False, system=None, **options):
    roles = ("user", "assistant") * len(texts)
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return chat.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=asks, **options
    )


def check_whole(chat, texts):
    """The whole text goes on, so that its last turn has an end whatever the template."""
    ids, _ = play(chat, texts)
    assert ids.tolist() == encode(chat, render(chat, [*texts, "More."]))[: len(ids)]


@pytest.mark.parametrize(("family", "name"), EVERY)
def test_tokens_are_those_of_the_whole_text(family, name):
    for strips in STRIPS:
        chat = ChatFormat(make_family(family, MODEL_TEMPLATES[name], strips=strips))
        for texts in TALKS:
            check_whole(chat, texts)


PIECES = st.sampled_from(["Action", "ac", "\n", "\n\n", " ", "é", "😀", "1", "(", ":", "user", "["])


@given(
    st.sampled_from(EVERY),
    st.sampled_from(sorted(STRIPS)),
    st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=4, max_size=4),
)
def test_no_text_has_other_tokens_unless_one_reaches_over_the_end_of_a_prompt(case, strips, texts):
    family, name = case
    chat = ChatFormat(make_family(family, MODEL_TEMPLATES[name], strips=strips))
    ids, _ = play(chat, texts)
    whole = encode(chat, render(chat, [*texts, "More."]))
    prompts = [encode(chat, render(chat, texts[:num], asks=True)) for num in (1, 3)]
    if all(whole[: len(prompt)] == prompt for prompt in prompts):
        assert ids.tolist() == whole[: len(ids)]
    elif family in EXACT and not strips:  # the same text in other tokens
        assert chat.tokenizer.decode(whole).startswith(chat.tokenizer.decode(ids.tolist()))


@pytest.mark.parametrize("family", EXACT)
def test_a_prompt_that_ends_in_space_stays_as_it_is(family):
    """Where the whole text has a token over its end, what follows has others for the same text."""
    template = MODEL_TEMPLATES["vicuna"].replace("' ASSISTANT:'", "' ASSISTANT: '")
    chat = ChatFormat(make_family(family, template))
    for texts in TALKS:
        ids, turns = play(chat, texts)
        asked = encode(chat, render(chat, texts[:1], asks=True))
        assert ids[: len(asked)].tolist() == asked
        whole = chat.tokenizer.decode(encode(chat, render(chat, texts)))
        assert chat.tokenizer.decode(ids.tolist()) == whole
        assert chat.find_action(chat.decode(turns[0])).strip() == texts[1].strip()


@pytest.mark.parametrize("family", ["byte level of GPT-4", "bpe, legacy", "unigram, first"])
def test_tokens_are_those_of_the_whole_text_with_templates_of_many_models(family, trl_templates):
    taken = set()
    for name, template in trl_templates.items():
        if "think" not in template:  # or what it writes of earlier turns is another text
            control = tuple(sorted(set(_CONTROL.findall(template))))
            try:
                chat = ChatFormat(make_family(family, template, control=control))
            except SettingsError as error:
                assert "\n" not in str(error)
                continue
            for texts in TALKS:
                check_whole(chat, texts)
            taken.add(name)
    assert taken >= {"phi3", "phi3_5", "llama3", "llama3_1", "gemma", "gemma3", "qwen2_5", "cohere"}


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_without_a_thought_has_the_tokens_of_what_the_template_asks_and_its_text(
    family, name, thinks
):
    model = ModelSettings(chat_template_kwargs={"enable_thinking": thinks})
    chat = ChatFormat(make_family(family, TEMPLATES[name]), model)
    end = str(chat.tokenizer.convert_ids_to_tokens(chat.end_token_id))
    for texts in TALKS[:3]:
        ids, _ = play(chat, texts[:2])
        asked = render(chat, texts[:1], asks=True, enable_thinking=thinks)
        said = BEFORE_ACTION.get((name, thinks), "") + texts[1] + end
        begun, whole = encode(chat, asked), encode(chat, asked + said)
        if whole[: len(begun)] == begun:
            assert ids.tolist() == whole
        else:  # the thought that is opened ends in a line break, and one follows
            assert chat.tokenizer.decode(ids.tolist()) == asked + said


@pytest.mark.parametrize("name", ["json", "bare json", "marks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_and_answers_have_the_tokens_of_the_whole_text(family, name):
    chat = ToolChat(make_family(family, TOOL_TEMPLATES[name]), ModelSettings(), TOOLS)
    call = ToolCall("execute_sql", {"sql": "SELECT 'é' ,\n 1"})
    ids = np.concatenate([chat.begin("Count."), chat.encode_action(TOOLS.to_action(call))])
    ids = np.concatenate([ids, chat.extend(ids, ' None of\n"é". ', "")])
    function = {"name": call.name, "arguments": call.arguments}
    messages = [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": ' None of\n"é". '},
        {"role": "tool", "content": ""},
    ]
    whole = chat.tokenizer.apply_chat_template(
        messages, tools=TOOLS.to_openai(), tokenize=False, add_generation_prompt=True
    )
    assert ids.tolist() == encode(chat, whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_oracle_s_mask_is_on_its_turns_and_their_ends_alone(family):
    env = make_text_env("Tests/Word-v0", {})
    task = env.task_source.draw(np.random.default_rng(0))
    prompt, actions = f"Say {task.word} in 4 turns.", ["please", task.word]
    for template in MODEL_TEMPLATES.values():
        chat = ChatFormat(make_family(family, template))
        played = play_oracle(env, task, chat)
        ids = np.concatenate([played.prompt_ids, played.token_ids])
        talk = [prompt, actions[0], env.hint, actions[1]]
        assert ids.tolist() == play(chat, talk)[0].tolist()
        assert ids.tolist() == encode(chat, render(chat, [*talk, "More."]))[: len(ids)]
        learnt = played.token_ids[played.loss_mask].tolist()
        assert learnt == [token for text in actions for token in chat.encode_action(text).tolist()]
        assert learnt.count(chat.end_token_id) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_s_turns_that_are_not_learnt_are_read_in_the_tokens_of_the_whole_text(
    family, tmp_path
):
    talk = [*TALKS[0], "Wrong.", "Action: 42", "No.", "Act: go"]
    messages = [
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant") * 4, talk, strict=True)
    ]
    for number in (1, 5):
        messages[number]["weight"] = 0
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": messages}), "utf-8")
    for template in MODEL_TEMPLATES.values():
        chat = ChatFormat(make_family(family, template))
        (row,) = next(chat_groups(str(path), chat, seed=0)).trajectories
        ids = [*row.prompt_ids.tolist(), *row.token_ids.tolist()]
        assert ids == encode(chat, render(chat, [*talk, "More."]))[: len(ids)]
        learnt = [chat.encode_action(talk[number]).tolist() for number in (3, 7)]
        assert row.token_ids[row.loss_mask].tolist() == [*learnt[0], *learnt[1]]


ACTIONS = [SQL, "3", "Act: é 😀", "", "(a)", "a  b\n c", "\n\nAct", "Act: go\n", "Act: go  "]


@pytest.mark.parametrize("family", EXACT)
def test_the_environment_hears_the_action_that_was_imitated(family):
    for (name, template), strips in product(MODEL_TEMPLATES.items(), STRIPS):
        chat = ChatFormat(make_family(family, template, strips=strips))
        for action in ACTIONS:
            heard = chat.find_action(chat.decode(chat.encode_action(action)))
            if name in STRIPPING or strips:
                assert heard.strip() == action.strip()
            else:
                assert heard == action


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_turn_is_ended_as_the_template_ends_it(family):
    """What was sampled stands as it was, however a tokenizer would write its text."""
    talk = ["Go.", "Action: Answer", "No."]
    for name, template in MODEL_TEMPLATES.items():
        chat = ChatFormat(make_family(family, template))
        said = encode(chat, f"n{talk[1]}")[len(encode(chat, "n")) :]
        cut = np.concatenate([chat.begin("Go."), said])
        whole = encode(chat, render(chat, talk, asks=True))
        answer = chat.extend(cut, "No.").tolist()
        assert whole[-len(answer) :] == answer, name
        assert answer.count(chat.end_token_id) >= 1


def test_a_turn_has_one_end_where_the_tokenizer_takes_its_text_for_words():
    """As Llama 2's first files, whose control tokens are sought in the normalized text."""
    tokenizer = make_family("bpe, legacy", MODEL_TEMPLATES["zephyr"], strips="normalized")
    chat = ChatFormat(tokenizer)
    assert chat.end_token_id not in encode(chat, f"Act{EOS}")
    said = encode(chat, "\nAct")[len(encode(chat, "\n")) :]
    assert chat.encode_action("Act").tolist() == [*said, chat.end_token_id]
    cut = np.concatenate([chat.begin("Go."), said])
    ended = np.append(cut, chat.end_token_id)
    answer = [chat.end_token_id, *chat.extend(ended, "No.")]
    assert chat.extend(cut, "No.").tolist() == answer


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_template_tokens_are_those_of_the_whole_text_without_an_end(family):
    """What a tokenizer puts before a text begins the conversation; its end is not the prompt's."""
    prompt, first, answer, second = TALKS[0]
    for added, strips in product(ADDED, STRIPS):
        tokenizer = make_family(family, added=added, strips=strips)
        chat = ChatFormat(tokenizer, ModelSettings(use_chat_template=False))
        ids, turns = play(chat, TALKS[0])
        text = f"{prompt}\n{first}{EOS}{answer}\n{second}{EOS}"
        begin = tokenizer.convert_tokens_to_ids([BOS] if "bos" in added else [])
        assert ids.tolist() == [*begin, *encode(chat, text)]
        assert (ids == chat.end_token_id).sum() == 2
        assert all(turn[-1] == chat.end_token_id for turn in turns)
        cut = np.concatenate([chat.begin(prompt), turns[0][:-1]])
        cut = np.concatenate([cut, chat.extend(cut, answer)])
        assert cut.tolist() == [*begin, *encode(chat, f"{prompt}\n{first}\n{answer}\n")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_system_prompt_stands_at_the_beginning_alone(family):
    """Also where a template would move it behind what the agent has read."""
    tokenizer, model = make_family(family, SYSTEM_LAST), ModelSettings(system_prompt="Be good.")
    chat = ChatFormat(tokenizer, model)
    ids, _ = play(chat, TALKS[0])
    begun = encode(chat, render(chat, TALKS[0][:1], asks=True, system="Be good."))
    assert ids[: len(begun)].tolist() == begun
    whole = encode(chat, render(chat, TALKS[0]))
    start = len(chat.begin(TALKS[0][0])) - len(ids)
    assert ids[start:].tolist() == whole[start:]


def test_a_chat_s_system_message_that_the_template_leaves_out_is_refused():
    drops = "{%- set messages = messages | rejectattr('role', 'equalto', 'system') -%}"
    chat = ChatFormat(make_family("byte level", drops + MODEL_TEMPLATES["chatml"]))
    with pytest.raises(SettingsError, match="a chat's system message: the chat template leaves"):
        chat.begin("Go.", "Be good.")


def test_a_template_that_leaves_out_the_prompt_is_refused():
    template = "{%- set messages = messages[1:] -%}" + MODEL_TEMPLATES["chatml"]
    with pytest.raises(SettingsError, match="leaves out the prompt"):
        ChatFormat(make_family("byte level", template))
