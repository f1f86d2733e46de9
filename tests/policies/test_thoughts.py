"""Thinking models: thoughts are trained on as sampled, and the environment hears actions alone."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import word_env
from chat_templates import BEFORE_ACTION, SPECIAL, TEMPLATES, make_tokenizer

from agentpeft.apps.drivers.trl_environment import make_rows
from agentpeft.apps.drivers.trl_rollout import TrlRollout
from agentpeft.envs import Outcome, SettingsError
from agentpeft.policies.engines.player import Player
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.rollout.oracle import play_oracle
from agentpeft.policies.rollout.scripted_play import make_text_env
from agentpeft.policies.settings.config import ModelSettings, Settings
from agentpeft.policies.thoughts import find_action

SYSTEM = "You are careful.\nAnswer in é."
CASES = list(product(TEMPLATES, (True, False), (None, SYSTEM)))
THOUGHT = "Should I say Act: finish now?"


def make_chat(name, enable_thinking=True, system_prompt=None, **settings):
    kwargs = {"enable_thinking": enable_thinking}
    model = ModelSettings(chat_template_kwargs=kwargs, system_prompt=system_prompt, **settings)
    return ChatFormat(make_tokenizer(TEMPLATES[name]), model)


def render(chat, *turns, asks, **kwargs):
    """Returns the template's own text of a conversation, the system prompt before it."""
    roles = ["user", "assistant"] * len(turns)
    messages = [{"role": r, "content": t} for r, t in zip(roles, turns, strict=False)]
    if chat.system_prompt:
        messages.insert(0, {"role": "system", "content": chat.system_prompt})
    return chat.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=asks, **kwargs
    )


def text_of(chat, ids):
    return chat.tokenizer.decode(ids.tolist())


@pytest.mark.parametrize(("name", "thinks", "system"), CASES)
def test_a_question_ends_as_the_template_asks(name, thinks, system):
    chat = make_chat(name, thinks, system)
    asked = render(chat, "1+1?", asks=True, enable_thinking=thinks)
    assert text_of(chat, chat.begin("1+1?")) == asked
    assert (system or "") in asked


@pytest.mark.parametrize(("name", "thinks", "system"), CASES)
def test_an_imitated_action_stands_behind_the_end_of_an_empty_thought(name, thinks, system):
    chat = make_chat(name, thinks, system)
    turn = chat.encode_action("Act: 2")
    said = chat.decode(turn)
    assert said == BEFORE_ACTION.get((name, thinks), "") + "Act: 2"
    assert chat.find_action(said) == "Act: 2"
    whole = text_of(chat, np.concatenate([chat.begin("1+1?"), turn]))
    assert whole.count("<think>") == whole.count("</think>")
    if name in ("qwen3", "qwen3.5"):  # whose template writes the empty thought of an answer itself
        rendered = render(chat, "1+1?", "Act: 2", asks=False, enable_thinking=thinks)
        assert whole == rendered.removesuffix("\n")


def say(name, thinks, thought, action):
    """Returns a turn as such a model samples it, behind what its template asks with."""
    if not thinks:
        return action
    return f"{'<think>' if name == 'qwen3' else ''}{thought}\n</think>\n\n{action}"


@pytest.mark.parametrize("num_turns", [1, 2, 5])
@pytest.mark.parametrize(("name", "thinks", "system"), CASES)
def test_a_conversation_is_what_was_sampled_and_what_the_template_writes_between(
    name, thinks, system, num_turns
):
    chat = make_chat(name, thinks, system)
    end = str(chat.tokenizer.convert_ids_to_tokens(chat.end_token_id))
    opening = render(chat, "Go.", asks=True, enable_thinking=thinks)
    between = render(chat, "Go.", "ACTION", "No. é", asks=True, enable_thinking=thinks)
    between = between.partition("ACTION")[2]
    ids, text = chat.begin("Go."), opening
    for turn in range(num_turns):
        said = say(name, thinks, f"{THOUGHT} {turn}", f"Act: {turn}")
        sampled = chat.tokenizer(said + end, add_special_tokens=False)["input_ids"]
        before, ids = ids, np.concatenate([ids, sampled])
        assert ids[: len(before)].tolist() == before.tolist()
        assert chat.decode(np.array(sampled)) == said
        assert chat.find_action(said) == f"Act: {turn}"
        ids = np.concatenate([ids, chat.extend(ids, "No. é")])
        text += said + between
    assert text_of(chat, ids) == text
    assert text.count(THOUGHT) == thinks * num_turns  # a rendering of the history has none
    thoughtless = [turn for i in range(num_turns) for turn in (f"Act: {i}", "No. é")]
    history = render(chat, "Go.", *thoughtless, asks=True, enable_thinking=thinks)
    assert history.count(THOUGHT) == 0 and text.count("Act: ") - history.count("Act: ") == (
        thinks * num_turns
    )


@pytest.mark.parametrize(("name", "thinks"), list(product(TEMPLATES, (True, False))))
def test_a_thought_without_an_end_is_no_action(name, thinks):
    chat = make_chat(name, thinks)
    assert chat.find_action(f"<think>\n{THOUGHT}") == ""
    is_opened = thinks and name != "qwen3"
    assert chat.find_action(THOUGHT) == ("" if is_opened else THOUGHT)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("Act: go", "Act: go"),
        ("  Act: go\n", "  Act: go\n"),
        ("<think>a</think>  Act: go\n", "Act: go\n"),
        ("a</think>Act: b</think>\nAct: go", "Act: go"),
        ("a</think>Act: b<think>or not</think>Act: go", "Act: go"),
        ("a</think>Act: b <think>or Act: c", ""),
        ("Act: b <think>or Act: c", ""),
        ("</think>", ""),
        ("", ""),
    ],
)
def test_the_action_follows_the_last_thought(said, action):
    assert find_action(said) == action
    assert find_action(said.replace("think>", "THINK]").replace("<", "["), "[/THINK]") == action
    assert find_action(said, "") == said


def test_other_ends_of_thoughts():
    final = "<|channel|>final<|message|>"
    said = f"<|channel|>analysis<|message|>{THOUGHT}<|end|>{final}Act: go"
    assert find_action(said, final) == "Act: go"
    chat = ChatFormat(make_tokenizer(TEMPLATES["qwen3.5"]), ModelSettings(end_of_thought=""))
    assert chat.find_action("hm</think>go") == "hm</think>go"


def test_an_unknown_template_variable_is_refused():
    model = ModelSettings(chat_template_kwargs={"enable_thinkin": False})
    with pytest.raises(SettingsError, match="does not read 'enable_thinkin'"):
        ChatFormat(make_tokenizer(TEMPLATES["qwen3"]), model)


def test_a_template_that_drops_or_refuses_a_system_prompt_is_refused():
    model = ModelSettings(system_prompt=SYSTEM)
    drops = TEMPLATES["deepseek"].replace("{{ m.content }}", "", 1)
    with pytest.raises(SettingsError, match=r"model\.system_prompt: the chat template leaves it"):
        ChatFormat(make_tokenizer(drops), model)
    refuses = TEMPLATES["deepseek"].replace("{{ m.content }}", "{{ raise_exception('no') }}", 1)
    with pytest.raises(SettingsError, match="cannot render a conversation of system, user and"):
        ChatFormat(make_tokenizer(refuses), model)


def test_without_a_template_the_system_prompt_is_the_first_line():
    model = ModelSettings(use_chat_template=False, system_prompt="Be good.")
    chat = ChatFormat(make_tokenizer(), model)
    assert text_of(chat, chat.begin("1+1=?")) == "Be good.\n1+1=?\n"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"use_chat_template": False, "chat_template_kwargs": {"enable_thinking": False}},
            "no effect with model.use_chat_template = false",
        ),
        ({"chat_template_kwargs": {"tokenize": True}}, "the template's own variables"),
        ({"system_prompt": ""}, "model.system_prompt"),
        ({"end_of_thought": None}, "model.end_of_thought"),
    ],
)
def test_settings_without_sense_are_refused(overrides, message):
    with pytest.raises(SettingsError, match=message):
        Settings(model=overrides)


def test_special_tokens_of_the_templates_are_one_token_each():
    tokenizer = make_tokenizer()
    assert all(len(tokenizer(text)["input_ids"]) == 1 for text in SPECIAL)


def run_episode(chat, texts, **changes):
    """Returns the one episode in tokens and in words; `texts` None are the oracle's."""
    word_env.HEARD.clear()
    runners = {"engine": "scripted" if texts is None else "transformers", "max_new_tokens": 1000}
    settings = Settings(environment={"id": "Tests/Word-v0"}, env_runners={**runners, **changes})
    oracle = {}
    engine = ScriptedEngine(chat, oracle if texts is None else lambda _, turn: texts[turn])
    runner = EnvRunner(settings, player=Player(chat, engine, oracle))
    try:
        (group,), report = runner.sample([GroupRequest(0, 1)])
    finally:
        runner.close()
    return group.trajectories[0], report.records[0]


@pytest.mark.parametrize(("name", "thinks", "system"), CASES)
def test_a_runner_trains_on_thoughts_and_tells_the_environment_the_actions(name, thinks, system):
    chat, actions = make_chat(name, thinks, system), ["one", "two", "three", "four"]
    said = [say(name, thinks, f"{THOUGHT} {action}", action) for action in actions]
    trajectory, record = run_episode(chat, said)
    assert [heard for _, heard in word_env.HEARD] == actions
    masked = zip(
        np.split(trajectory.token_ids, trajectory.turn_ends)[:-1],
        np.split(trajectory.loss_mask, trajectory.turn_ends)[:-1],
        strict=True,
    )
    assert [chat.decode(ids[mask]) for ids, mask in masked] == said
    roles = ["system"] if system else []
    assert [role for role, _ in record.messages] == [*roles, *["user", "assistant"] * 4, "user"]
    assert [text for role, text in record.messages if role == "assistant"] == said


@pytest.mark.parametrize(("name", "thinks"), list(product(TEMPLATES, (True, False))))
def test_the_oracle_succeeds_with_every_template(name, thinks):
    chat = make_chat(name, thinks)
    trajectory, _ = run_episode(chat, None)
    assert trajectory.outcome is Outcome.SUCCESS
    env = make_text_env(Settings().environment.id, {})
    task = env.task_source.draw(np.random.default_rng(0))
    imitated = play_oracle(env, task, chat)
    assert chat.find_action(chat.decode(imitated.token_ids[imitated.loss_mask])) == task.answer
    whole = np.concatenate([imitated.prompt_ids, imitated.token_ids])
    assert text_of(chat, whole).count("<think>") == text_of(chat, whole).count("</think>")


def test_a_turn_that_is_cut_in_its_thought_is_no_action():
    chat = make_chat("qwen3.5")
    run_episode(chat, [f"{THOUGHT}</think>one"] * 4, max_new_tokens=10)
    assert [heard for _, heard in word_env.HEARD] == [""] * 4


class SayingModel:
    """What `generate` needs of a model: it says the same to every context."""

    device, training = torch.device("cpu"), False

    def __init__(self, ids):
        self._ids = torch.tensor(ids)

    def train(self, mode):
        del mode

    def generate(self, input_ids, **options):
        del options
        ids = self._ids.expand(len(input_ids), -1)
        scores = torch.nn.functional.one_hot(ids, 300).float().unbind(1)
        return SimpleNamespace(sequences=torch.cat([input_ids, ids], 1), scores=scores)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_rollout_for_trl_tells_the_environment_the_actions(name):
    word_env.HEARD.clear()
    own = ModelSettings(chat_template_kwargs={"enable_thinking": True}, system_prompt=SYSTEM)
    tokenizer = make_tokenizer(TEMPLATES[name])
    tokenizer.pad_token = SPECIAL[0]
    chat = ChatFormat(tokenizer, own)
    said = tokenizer(say(name, True, THOUGHT, "one"), add_special_tokens=False)["input_ids"]
    model = SayingModel([*said, chat.end_token_id])
    trainer = SimpleNamespace(model=model, temperature=1.0, max_completion_length=10**6)
    rollout = TrlRollout(
        "Tests/Word-v0", tokenizer=tokenizer, max_new_tokens=len(said) + 1, model=own
    )
    played = rollout([row["prompt"] for row in make_rows(1)], trainer)
    assert [heard for _, heard in word_env.HEARD] == ["one"] * 4
    sampled = np.array(played["completion_ids"][0])[np.array(played["env_mask"][0]) == 1]
    assert sampled.tolist() == [*said, chat.end_token_id] * 4
    assert SYSTEM in tokenizer.decode(played["prompt_ids"][0])
