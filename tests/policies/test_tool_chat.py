"""Actions as tool calls in a chat template's own format."""

import re
import time
from contextlib import closing

import numpy as np
import pytest
import torch
from chat_templates import QWEN3, SPECIAL, TOOL_TEMPLATES, make_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.apps.lab.playing.replaying import read_answers, texts_of
from agentpeft.envs import Outcome, SettingsError
from agentpeft.envs.arithmetic.tools import TOOLS as SUBMIT
from agentpeft.envs.db_bench.tools import TOOLS as DB
from agentpeft.envs.os_interaction.tools import TOOLS as OS
from agentpeft.envs.tools.tool_table import ANY_TEXT, ToolCall
from agentpeft.launch.cli import main
from agentpeft.launch.train import main as train
from agentpeft.policies.engines.player import Player
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.rollout.chat import open_chat
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.environments import open_stages
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.rollout.scripted_play import play_actions
from agentpeft.policies.rollout.tool_chat import ToolChat
from agentpeft.policies.settings.config import EnvironmentSettings, ModelSettings, Settings
from agentpeft.policies.settings.toml import with_overrides

CALLS = """
[model]
name = "model"
tool_calls = true
[lora]
rank = 0
[environment]
id = "AgentPEFT/Arithmetic-v0"
kwargs = {prompt = "tools", num_digits = 1}
[warm_start]
num_steps = 4
batch_size = 4
lr = 3e-3
[training]
num_iterations = 2
num_groups = 4
group_size = 4
lr = 1e-4
[env_runners]
num_env_runners = 0
max_new_tokens = 100
[evaluation]
num_tasks = 16
[output]
loggers = ["episodes"]
"""
ODD = "SELECT 'é\"\\' ,\n '{}' -- <tool_call> 1"


def make_chat(name="json", tools=DB, template=None):
    return ToolChat(make_tokenizer(template or TOOL_TEMPLATES[name]), ModelSettings(), tools)


def text_of(chat, ids):
    return chat.tokenizer.decode(ids.tolist())


def write(chat, tool_name, **arguments):
    """Returns a call's text."""
    return chat.calls.write(ToolCall(tool_name, arguments))


def calls_of(*calls):
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": each} for each in functions],
    }


def answer(text):
    return {"role": "tool", "content": text}


@pytest.mark.parametrize("name", TOOL_TEMPLATES)
def test_a_conversation_is_what_the_template_renders(name):
    chat, sql = make_chat(name), ODD
    ids = chat.begin("Count é.")
    turn = chat.encode_action(DB.to_action(ToolCall("execute_sql", {"sql": sql})))
    ids = np.concatenate([ids, turn])
    ids = np.concatenate([ids, chat.extend(ids, 'None of\n"é".', "Two.")])
    messages = [
        {"role": "user", "content": "Count é."},
        calls_of(("execute_sql", {"sql": sql})),
        answer('None of\n"é".'),
        answer("Two."),
    ]
    rendered = chat.tokenizer.apply_chat_template(
        messages, tools=DB.to_openai(), tokenize=False, add_generation_prompt=True
    )
    own = text_of(chat, ids)
    if "thought" in name:  # it is left out of the history, and stays in the episode
        assert chat.decode(turn).partition("<tool_call>")[0].endswith("\n</think>\n\n")
        own = own.replace("<think>\n\n</think>\n\n", "", 1)
    assert own == rendered


@pytest.mark.parametrize("name", TOOL_TEMPLATES)
@pytest.mark.parametrize("tools", [DB, OS, SUBMIT, ANY_TEXT])
def test_every_tool_s_call_is_read_as_it_was_written(name, tools):
    chat = make_chat(name, tools)
    for tool in tools:
        for num in range(len(tool.required), len(tool.parameters) + 1):
            names = list(tool.parameters)[:num]
            call = ToolCall(tool.name, dict.fromkeys(names, ODD))
            action = tools.to_action(call)
            said = chat.decode(chat.encode_action(action))
            found = chat.find_actions(said)
            assert [(each.text, each.problem) for each in found] == [(action, None)]


@pytest.mark.parametrize("name", [name for name in TOOL_TEMPLATES if name != "bare json"])
def test_a_turn_of_several_calls_has_as_many_actions(name):
    chat = make_chat(name)
    actions = [DB.to_action(ToolCall("execute_sql", {"sql": f"SELECT {n}"})) for n in range(3)]
    said = chat._before_action + "Then:\n".join(
        write(chat, "execute_sql", sql=f"SELECT {n}") for n in range(3)
    )
    assert [found.text for found in chat.find_actions(said)] == actions


NO_CALL = "call a tool: execute_sql(sql), submit(answer)"
UNREAD = f"the call cannot be read; {NO_CALL}"
MARKED = "<tool_call>\n<function=submit>\n<parameter=answer>\n4\n</parameter>"


@pytest.mark.parametrize(
    ("name", "said", "problem"),
    [
        ("json", "4", NO_CALL),
        ("json", "", NO_CALL),
        ("json", "<think>\n<tool_call>\n", NO_CALL),
        ("json", "<tool_call>\nsubmit", UNREAD),
        ("json", '<tool_call>\n{"name": "submit", "argum', UNREAD),
        ("json", "<tool_call>" * 2, UNREAD),
        ("json", '<tool_call>\n{"name": "look", "arguments": {}}', 'no tool "look"'),
        ("json", '<tool_call>\n{"name": "\\ud83d"}', 'no tool "?"'),
        ("json", '<tool_call>\n{"name": "submit", "arguments": []}', "must be a JSON object"),
        ("json", '<tool_call>\n{"name": "submit"}\n</tool_call>', "needs the argument 'answer'"),
        ("json", '<tool_call>{"name": "submit", "arguments": null}', "needs the argument"),
        ("json", '<tool_call>{"name": "submit", "arguments": {"answer": [1]}}', "be a string"),
        ("bare json", "4", NO_CALL),
        ("bare json", "{4}", UNREAD),
        ("marks", "4", NO_CALL),
        ("marks", MARKED, UNREAD),
        ("marks", MARKED.replace("answer", "text") + "</function>", "has no argument"),
        ("marks", "<tool_call><function=look></function></tool_call>", 'no tool "look"'),
    ],
)
def test_what_is_no_call_is_an_invalid_action_in_words(name, said, problem):
    chat = make_chat(name)
    found = chat.find_actions(said)
    assert found[0].text == "" and problem in found[0].problem
    assert len(chat.extend(chat.begin("Go."), found[0].problem))


SQL = "<function=execute_sql>\n<parameter=sql>\nSELECT\n1\n</parameter> </function>"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("json", '<tool_call>{"name": "execute_sql", "arguments": {"sql": "SELECT\n1"}}'),
        ("json", '<tool_call>[{"name": "execute_sql", "parameters": {"sql": "SELECT\\n1"}}]'),
        (
            "json",
            r'<tool_call>{"name": "execute_sql", "arguments": "{\"sql\": \"SELECT\\n1\"}"}',
        ),
        ("bare json", '{1}: {"name": "execute_sql", "arguments": {"sql": "SELECT\\n1"}}'),
        ("marks", f"<tool_call>\n\n {SQL}"),
        ("marks", "<tool_call>" + SQL.replace(">\n", ">")),
    ],
)
def test_what_models_write_otherwise_is_read(name, said):
    (found,) = make_chat(name).find_actions(said)
    assert (found.text, found.problem) == ("Action: Operation\n```sql\nSELECT\n1\n```", None)


@pytest.mark.parametrize("name", TOOL_TEMPLATES)
@pytest.mark.parametrize(
    "piece", ["<tool_call>", f"{MARKED}\n", " \n", "{", '{"a":', "<tool_call>["]
)
def test_no_text_takes_long_to_read(name, piece):
    chat, start_s = make_chat(name), time.process_time()
    assert chat.find_actions("<tool_call>" + piece * 4000)
    assert time.process_time() - start_s < 2


def test_numbers_are_answers_as_they_are_written():
    said = '<tool_call>{"arguments": {"answer": 4.50}, "name": "submit"}</tool_call>'
    (found,) = make_chat(tools=SUBMIT).find_actions(said)
    assert (found.text, found.problem) == ("4.50", None)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (QWEN3, "has no tools"),
        (TOOL_TEMPLATES["marks"].replace("+ value +", "+ value | upper +"), "are not read"),
        (TOOL_TEMPLATES["marks"].replace("<function=", "<call="), "neither as JSON"),
        (
            TOOL_TEMPLATES["json"].replace("call.arguments | tojson", "call.arguments + ''"),
            "render",
        ),
        (TOOL_TEMPLATES["json"].replace("m.content + '\n</tool", "'\n</tool"), "by call"),
        (
            TOOL_TEMPLATES["json"].replace(
                "m.content + '\n</tool", "m.content.replace('é', 'e') + '\n</tool"
            ),
            "rewrites",
        ),
    ],
)
def test_a_template_that_does_not_fit_is_refused(template, message):
    with pytest.raises(SettingsError, match=message):
        make_chat(template=template)


def test_templates_of_many_models_are_taken_or_refused_in_a_line(trl_templates):
    taken = set()
    for name, template in trl_templates.items():
        special = sorted({*SPECIAL, *re.findall(r"<\|[^|<]+\|>", template)})
        tokenizer = make_tokenizer(template)
        tokenizer.add_special_tokens({"additional_special_tokens": special})
        try:
            chat = ToolChat(tokenizer, ModelSettings(), DB)
        except SettingsError as error:
            assert "\n" not in str(error)
            continue
        action = DB.to_action(ToolCall("execute_sql", {"sql": "SELECT '\"é' ,\n 1"}))
        said = chat.decode(chat.encode_action(action))
        assert [found.text for found in chat.find_actions(said)] == [action]
        taken.add(name)
    assert taken >= {
        *("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_6", "qwen3_vl"),
        *("llama3_1", "llama3_2", "nemotron_3_nano"),
    }


def make_settings():
    environment = EnvironmentSettings(id="AgentPEFT/DBBench-v0", kwargs={"prompt": "tools"})
    return Settings(model=ModelSettings(name="x", tool_calls=True), environment=environment)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["environment.kwargs.prompt=compact"], "prompt='tools'"),
        (["evaluation.env_kwargs.prompt=compact"], "prompt='tools'"),
        (["warm_start.env_kwargs.prompt=compact"], "prompt='tools'"),
        (["curriculum.stages=[{prompt='compact'},{}]"], "prompt='tools'"),
        (["environment.id=AgentPEFT/Remote-v0"], "only the tool act"),
    ],
)
def test_a_prompt_that_speaks_of_other_actions_is_refused(overrides, message):
    settings = make_settings()
    tokenizer = make_tokenizer(TOOL_TEMPLATES["json"])
    assert isinstance(open_chat(tokenizer, settings), ToolChat)
    other = Settings(**with_overrides(settings.model_dump(), overrides))
    with pytest.raises(SettingsError, match=message):
        open_chat(tokenizer, other)


@pytest.mark.parametrize(
    "override", ["model.name=tiny", "model.use_chat_template=false", "training.chats=a.jsonl"]
)
def test_settings_without_tools_are_refused(override):
    values = with_overrides(make_settings().model_dump(), [override])
    with pytest.raises(ValueError, match=r"model\.tool_calls"):
        Settings(**values)


def test_all_calls_of_a_turn_are_answered_before_the_next():
    chat, oracle, num_actions = make_chat(), {}, {}
    first = [write(chat, "execute_sql", sql="SELECT 7"), write(chat, "look")]
    first.append(write(chat, "execute_sql", sql="SELECT 8"))

    def say(session, turn):
        num_actions[session] = len(oracle[session])  # which is forgotten with the group
        return "Look.".join(first) if turn == 0 else oracle[session][turn - 1]

    values = ["environment.kwargs.invalid_ends=false", "environment.kwargs.max_turns=9"]
    values += [
        "output.loggers=['episodes']",
        "env_runners.engine=scripted",
        "training.group_size=2",
    ]
    values += ["environment.kwargs.reward={turn_cost=0.25}"]
    settings = Settings(**with_overrides(make_settings().model_dump(), values))
    player = Player(chat, ScriptedEngine(chat, say), oracle)
    with closing(EnvRunner(settings, player=player)) as runner:
        groups, report = runner.sample([GroupRequest(0, 2)])
    for trajectory, record in zip(groups[0].trajectories, report.records, strict=True):
        assert trajectory.outcome is Outcome.SUCCESS
        num_turns = num_actions["train-000000000-0000"] + 1
        assert len(trajectory.turn_ends) == record.num_turns == num_turns
        assert trajectory.turn_rewards[0] == -0.75
        assert sum(trajectory.turn_rewards[1:]) == 1 - 0.25 * (num_turns - 1)
        roles, texts = zip(*record.messages, strict=True)
        assert roles == ("user", "assistant") * num_turns + ("user",)
        problem = 'Invalid call: no tool "look"; call a tool: execute_sql(sql), submit(answer).'
        assert texts[2] == f"[(7,)]\n{problem}\n[(8,)]"
        turns = [chat.find_actions(said) for said in texts[1::2]]
        with closing(open_stages(settings)[0]) as pool:
            env, _ = pool.begin(0, pool.task_at(0))
            results = play_actions(env, texts_of(turns))
        assert read_answers(turns, results) == list(texts[2::2])
        shown = text_of(chat, trajectory.token_ids)
        assert shown.count("<tool_response>") == 3 + num_turns - 2
        sampled = chat.decode(trajectory.token_ids[trajectory.loss_mask])
        assert "<tool_response>" not in sampled and sampled.startswith(first[0])


@pytest.mark.slow
def test_a_run_imitates_calls_and_goes_on_by_reward(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    tokenizer = make_tokenizer(TOOL_TEMPLATES["json"])
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "calls.toml").write_text(CALLS, "utf-8")
    assert train(["calls.toml"]) == 0
    (run_dir,) = (tmp_path / "outputs/experiment").iterdir()
    lines = (run_dir / "sessions/train.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 32 and all("call" in line for line in lines)
    for words in (["train-0-0"], ["train-0-1", "--actions"], ["train-0-0:1", "--resample", "2"]):
        capsys.readouterr()
        assert main(["replay", str(run_dir), *words]) == 0
        assert "equal to the record" in capsys.readouterr().out
    assert main(["replay", str(run_dir), "train-0-0:1", "--oracle"]) == 0
    assert "the oracle from turn 1: success; equal to the record" in capsys.readouterr().out
