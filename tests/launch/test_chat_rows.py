"""Supervised steps on chats of a file: what is learnt of a row, and runs that learn from one."""

import json
import sys
from itertools import product

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tiny_run import ANOTHER_MODEL, TINY

from agentpeft.apps.lab.export import main as export
from agentpeft.envs import DataError, SettingsError
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.train import main
from agentpeft.policies.engines.endpoint_chat import TextChat
from agentpeft.policies.rollout.chat_rows import chat_groups, read_chats
from agentpeft.policies.settings.config import ModelSettings

END = TextChat.END
TALK = [
    {"role": "user", "content": "Guess."},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "Higher."},
    {"role": "assistant", "content": "2"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def played(path):
    """Returns a row's prompt, and the text of its tokens that are learnt."""
    (episode,) = next(chat_groups(path, TextChat(ModelSettings()), seed=0)).trajectories
    learnt = episode.token_ids[episode.loss_mask]
    return "".join(map(chr, episode.prompt_ids)), "".join(map(chr, learnt)), episode


@pytest.mark.parametrize(
    ("row", "prompt", "learnt"),
    [
        ({"messages": TALK}, f"Guess.{END}", f"1{END}2{END}"),
        ({"messages": [*TALK, TALK[2]]}, f"Guess.{END}", f"1{END}2{END}"),
        ({"prompt": TALK[:3], "completion": TALK[3:]}, f"Guess.{END}1{END}Higher.{END}", f"2{END}"),
        ({"prompt": "2+2=", "completion": "4"}, f"2+2={END}", f"4{END}"),
    ],
    ids=["messages", "user_last", "conversation", "texts"],
)
def test_a_row_s_answers_are_learnt_and_its_prompt_is_not(tmp_path, row, prompt, learnt):
    begun, said, episode = played(write(tmp_path / "chats.jsonl", [row]))
    assert (begun, said) == (prompt, learnt)
    assert sum(episode.turn_rewards) == 1.0 and len(episode.turn_ends) == learnt.count(END)


GUESSES = [
    {"role": role, "content": f"{role[0]}{number}"}
    for number in range(4)
    for role in ("user", "assistant")
]


@pytest.mark.parametrize("marks", [(0, 1), (False, True), (0.0, None)])
@pytest.mark.parametrize("name", ["weight", "train", "training", "trainable", "loss"])
def test_what_is_said_not_to_be_learnt_is_read_alone(tmp_path, name, marks):
    """Whichever turns those are; the conversation's text is the same, up to the last learnt."""
    for learnt in list(product([True, False], repeat=4))[:-1]:
        numbers = [number for number in range(4) if learnt[number]]
        messages = [dict(message) for message in GUESSES]
        for message, is_learnt in zip(messages[1::2], learnt, strict=True):
            message[name] = marks[is_learnt]
        path = write(tmp_path / f"chats{numbers}.jsonl", [{"messages": messages}])
        _, said, episode = played(path)
        assert said == "".join(f"a{number}{END}" for number in numbers)
        whole = "".join(map(chr, [*episode.prompt_ids, *episode.token_ids]))
        assert whole == "".join(m["content"] + END for m in GUESSES[: 2 * numbers[-1] + 2])
        assert episode.turn_rewards == (*[0.0] * (len(numbers) - 1), 1.0)
        first = len(episode.prompt_ids)
        assert list(episode.turn_ends) == [whole.index(f"a{n}") + 3 - first for n in numbers]


def test_fields_without_a_value_or_a_meaning_are_left_out(tmp_path):
    nothing = {"tool_calls": None, "images": [], "reasoning_content": "", "train_detail": None}
    more = nothing | {"weight": 1, "name": "expert", "id": 3}
    rows = [{"messages": [TALK[0] | nothing | {"weight": 0}, TALK[1] | more], "tools": None}]
    assert played(write(tmp_path / "chats.jsonl", rows))[1] == f"1{END}"


def test_every_round_has_each_row_once_and_a_position_is_always_the_same_row(tmp_path):
    rows = [{"prompt": str(n), "completion": str(n)} for n in range(5)]
    path, chat = write(tmp_path / "chats.jsonl", rows), TextChat(ModelSettings())
    groups = chat_groups(path, chat, seed=1)
    names = [next(groups).task_id for _ in range(10)]
    assert len(set(names[:5])) == len(set(names[5:])) == 5 and names[:5] != names[5:]
    assert next(chat_groups(path, chat, 1, first=7)).task_id == names[7]


def test_parquet_is_read_as_jsonl_is(tmp_path):
    rows = [{"messages": TALK}, {"messages": TALK[:2]}]
    write(tmp_path / "chats.jsonl", rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "chats.parquet")
    one, other = (read_chats(str(tmp_path / f"chats.{kind}")) for kind in ("jsonl", "parquet"))
    assert [row.messages for row in one] == [row.messages for row in other]


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """The hub may not be asked; what `datasets` makes of files stays in the test's folder."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))


@pytest.mark.slow
def test_the_datasets_package_s_rows_are_read_as_a_file_s_are(tmp_path, datasets, no_network):
    """A folder of files stands for a data set of the hub: the package's loader reads both."""
    folder = tmp_path / "talks"
    folder.mkdir()
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"messages": TALK}]), folder / "train.parquet"
    )
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"messages": TALK[:2]}] * 2), folder / "test.parquet"
    )
    assert [len(row.messages) for row in read_chats(f"hub:{folder}")] == [4]
    assert [len(row.messages) for row in read_chats(f"hub:{folder}:test")] == [2, 2]
    with pytest.raises(DataError, match="split 'dev' cannot be loaded"):
        read_chats(f"hub:{folder}:dev")


@pytest.mark.slow
def test_a_data_set_that_cannot_be_had_is_named(datasets, no_network):
    with pytest.raises(
        DataError, match="nobody/nothing split 'train' cannot be loaded: no network"
    ):
        read_chats("hub:nobody/nothing")
    with pytest.raises(SettingsError, match="expected hub:owner/name or hub:owner/name:split"):
        read_chats("hub:")


def test_without_the_datasets_package_its_extra_is_named(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    with pytest.raises(SettingsError, match=r"a/b needs datasets: pip install 'agentpeft\[hub\]'"):
        read_chats("hub:a/b")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "Hello"}, "a chat has messages, or a prompt and a completion"),
        ({"prompt": "Hello"}, "a chat has messages, or a prompt and a completion"),
        ({"messages": TALK[1:]}, r"must have user and assistant by turns.*got \['assistant'"),
        ({"messages": [*TALK, TALK[3]]}, "must have user and assistant by turns"),
        ({"prompt": "2+2=", "completion": "5", "label": False}, "field 'label' is false"),
        ({"messages": TALK[:1]}, "must have user and assistant by turns"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "must have messages with a role"),
        ({"messages": [{"role": "user", "content": None}]}, "must have messages with a role"),
        ({"prompt": TALK[:2], "completion": TALK[2:3]}, "must end with an assistant's turn"),
        ({"messages": [TALK[0], TALK[1] | {"weight": 0}]}, "must end with an assistant's turn"),
        ({"messages": TALK, "label": 0}, "field 'label' is false"),
        ({"messages": TALK, "weight": 0}, "field 'weight' says that the row is not to be learnt"),
        ({"messages": TALK, "train": False}, "field 'train' says that the row"),
        *(
            ({"messages": TALK, name: value}, f"field {name!r} must be 0 or 1.*got {value!r}")
            for name, value in [("weight", 0.5), ("weight", "0"), ("train", "false"), ("loss", -1)]
        ),
        ({"prompt": "2+2=", "completion": " \n"}, "turn to learn that has no text"),
        (
            {"messages": [TALK[0], TALK[1] | {"content": ""}, *TALK[2:]]},
            "an assistant's turn to learn that has no text",
        ),
        ({"messages": TALK, "tools": [{}]}, "field 'tools' is not read"),
        (
            {"messages": [TALK[0] | {"loss": True}, TALK[1]]},
            "in an assistant's message alone, got True",
        ),
        *(
            (
                {"messages": [TALK[0], TALK[1] | {name: value}]},
                f"have {name!r} 0 or 1.*got {value!r}",
            )
            for name, value in [("weight", 0.5), ("train", "false"), ("loss", -1)]
        ),
        *(
            (
                {"messages": [TALK[0], TALK[1] | {"content": text} | more]},
                f"a message with '{name}'",
            )
            for text in ("", "Calling.")
            for name, more in [
                ("tool_calls", {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
                ("function_call", {"function_call": {"name": "f", "arguments": "{}"}}),
                ("train_detail", {"train_detail": [{"begin_offset": 0, "train": False}]}),
                ("reasoning_content", {"reasoning_content": "Hm."}),
                ("masked", {"masked": True}),
                ("loss_scale", {"loss_scale": 0}),
            ]
        ),
        *(
            (row, r"must be Unicode text, has '\\ud83d', half of a surrogate pair")
            for row in [
                {"messages": [TALK[0], TALK[1] | {"content": "a\ud83d"}]},
                {"messages": [TALK[0] | {"content": "\ud83d\ud83d\ude00"}, TALK[1]]},
                {"messages": [{"role": "system", "content": "\ud83d"}, *TALK]},
                {"prompt": "\ud83d", "completion": "a"},
                {"prompt": "a", "completion": "\ud83d"},
                {"prompt": [TALK[0] | {"content": "\ud83d"}], "completion": "a"},
            ]
        ),
    ],
)
def test_a_row_that_is_no_chat_is_named(tmp_path, row, message):
    path = write(tmp_path / "chats.jsonl", [{"messages": TALK}, row])
    with pytest.raises(DataError, match=rf"chats\.jsonl:2.*{message}"):
        read_chats(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a config of the tiny model, and sums with their answers as chats."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    rng = np.random.default_rng(0)
    rows = [
        {
            "messages": [
                {"role": "system", "content": "Add."},
                {"role": "user", "content": f"{a}+{b}="},
                {"role": "assistant", "content": str(a + b)},
            ]
        }
        for a, b in rng.integers(1, 9, (40, 2)).tolist()
    ]
    write(tmp_path / "sums.jsonl", rows)
    return tmp_path


SFT = ("training.algorithm=sft", "training.group_size=", "warm_start.num_steps=0")


def losses(folder):
    (run_dir,) = (folder / "outputs/tiny").iterdir()
    return [row["train/policy_loss"] for row in read_metrics(run_dir) if "train/policy_loss" in row]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_sft_learns_a_file_of_chats(folder, kind):
    rows = [json.loads(line) for line in (folder / "sums.jsonl").read_text().splitlines()]
    if kind == "parquet":
        (folder / "sums.jsonl").unlink()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "sums.parquet")
    learn(folder, f"sums.{kind}")


@pytest.mark.slow
def test_sft_learns_rows_of_the_hub(folder, datasets, no_network):
    (folder / "sums").mkdir()
    (folder / "sums.jsonl").rename(folder / "sums/train.jsonl")
    learn(folder, f"hub:{folder / 'sums'}")


def learn(folder, chats):
    """Eight updates on all rows; the loss falls."""
    words = [f"training.chats={chats}", "training.num_iterations=8", "training.num_groups=20"]
    assert main(["tiny.toml", *SFT, *words]) == 0
    found = losses(folder)
    assert len(found) == 8 and found[-1] < found[0] - 0.05


@pytest.mark.parametrize("name", ["tiny", pytest.param("folder", marks=pytest.mark.slow)])
def test_a_warm_start_learns_a_file_of_chats(folder, name, capsys):
    """The built-in model's is its pretraining; any other model's trains its adapter."""
    words = ["training.chats=sums.jsonl", "warm_start.num_steps=3", "training.num_iterations=1"]
    if name == "folder":
        assert main(["tiny.toml", "training.num_iterations=0", "warm_start.num_steps=0"]) == 0
        (base,) = (folder / "cache").glob("tiny-*")
        words += [f"model.name={base}", *ANOTHER_MODEL, "output.dir=more"]
    assert main(["tiny.toml", *words]) == 0
    other = "output.dir=other"
    assert main(["tiny.toml", *words, "training.chats=", other]) == 0
    ends = [json.loads(t) for t in capsys.readouterr().out.splitlines() if '"adapter"' in t][-2:]
    weights = [(folder / end["adapter"] / "adapter_model.safetensors").read_bytes() for end in ends]
    assert weights[0] != weights[1]


@pytest.mark.slow
def test_a_warm_start_learns_rows_of_the_hub(folder, datasets, no_network):
    """The same rows as a file, and as a folder that stands for a data set of the hub."""
    (folder / "sums").mkdir()
    (folder / "sums/train.jsonl").write_bytes((folder / "sums.jsonl").read_bytes())
    models = []
    for number, chats in enumerate(("sums.jsonl", f"hub:{folder / 'sums'}", "")):
        words = [f"training.chats={chats}", "warm_start.num_steps=3", f"output.dir=at{number}"]
        assert main(["tiny.toml", *words, "training.num_iterations=0"]) == 0
        made = max((folder / "cache").glob("tiny-*/model.safetensors"), key=modified)
        models.append(made.read_bytes())
    assert models[0] == models[1] != models[2]


def modified(path):
    return path.stat().st_mtime_ns


def test_what_a_run_exports_can_be_learnt(folder):
    own = ["env_runners.engine=scripted", "warm_start.num_steps=0", "evaluation.num_tasks=0"]
    assert main(["tiny.toml", *own]) == 0
    (run_dir,) = (folder / "outputs/tiny").iterdir()
    assert export([str(run_dir), "--format", "sft", "--output", "rows.jsonl"]) == 0
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [row.messages[0].text for row in read_chats("rows.jsonl")] == [
        row["prompt"][0]["content"] for row in rows
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.chats=sums.jsonl", "warm_start.num_steps=0"], "for algorithm 'sft' or a warm"),
        ([*SFT, "training.chats=none.jsonl"], "none.jsonl: no such file"),
        (["training.chats=tiny.toml"], "tiny.toml:2: not JSON"),
    ],
)
def test_what_is_wrong_is_said_before_the_run(folder, capsys, words, message):
    assert main(["tiny.toml", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "outputs").exists()
