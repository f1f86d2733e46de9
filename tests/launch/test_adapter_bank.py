"""A bank of adapters: evaluated as one policy, here and at an endpoint, and merged one by one."""

import json
import shutil

import numpy as np
import pytest
from openai_server import serve
from safetensors.numpy import load_file, save_file
from tiny_run import make_run

from agentpeft.apps.lifelong.banks import count_pairs, write_bank
from agentpeft.launch import evaluate, merge
from agentpeft.launch.evaluating.adapter_bank import read_bank
from agentpeft.launch.evaluating.merging import base_settings
from agentpeft.launch.run.run_folder import find_adapter
from agentpeft.policies.checkpointing.reading import read_config
from agentpeft.policies.models.load import load_base

pytestmark = pytest.mark.slow
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """The folder of two adapters, for sums and for differences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        run_dir = make_run(tmp_path_factory.mktemp("run"))
        sums, differences = find_adapter(run_dir), tmp_path_factory.mktemp("other") / "adapter"
        shutil.copytree(sums, differences)
        rng = np.random.default_rng(1)
        weights = load_file(differences / WEIGHTS)
        moved = {name: w + 0.05 * rng.normal(size=w.shape) for name, w in weights.items()}
        moved = {name: weight.astype(np.float32) for name, weight in moved.items()}
        save_file(moved, differences / WEIGHTS, {"format": "pt"})
        settings = read_config(run_dir)
        kwargs = {**settings.environment.kwargs, "operations": ["addition", "subtraction"]}
        environment = settings.environment.model_copy(update={"kwargs": kwargs})
        counts = {
            name: count_pairs(f"{a}{sign}{b}=" for a in range(10) for b in range(10))
            for name, sign in (("sums", "+"), ("differences", "-"))
        }
        folder = tmp_path_factory.mktemp("banks") / "two"
        adapters = {"sums": sums, "differences": differences}
        write_bank(
            folder, adapters, counts, settings.model_copy(update={"environment": environment})
        )
        yield folder


def play(capsys, *words):
    status = evaluate.main([str(word) for word in words])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return json.loads(printed.out.splitlines()[-1])


def read_answers(folder, name):
    """Returns what was answered, and the operation, by task."""
    rows = map(json.loads, (folder / "sessions" / f"{name}.jsonl").read_text().splitlines())
    return {row["group_id"]: (row["messages"][1][1], row["skills"][0]) for row in rows}


def test_a_bank_answers_each_task_as_the_adapter_of_its_prompt_does_alone(bank, tmp_path, capsys):
    out, words = tmp_path / "out", []
    for name, adapter in read_bank(bank).adapters.items():
        words += ["--adapter", f"{name}={adapter}"]
    found = play(capsys, bank, "--adapter", bank, *words, "--policy", "base", "--output", out)
    assert list(found["policies"]) == ["two", "sums", "differences", "base"]
    together, alone = read_answers(out, "two"), {}
    for name, skill in (("sums", "addition"), ("differences", "subtraction")):
        own = read_answers(out, name)
        alone |= {task: answer for task, answer in own.items() if answer[1] == skill}
    assert together == alone
    assert len(together) == 20
    assert all(together != read_answers(out, name) for name in ("sums", "differences", "base"))
    again = play(capsys, bank, "--adapter", bank, "--output", out)
    assert again["policies"]["two"] == found["policies"]["two"]


def test_a_banks_adapters_are_an_endpoints_models_by_their_names(bank, tmp_path, capsys):
    base = load_base(base_settings(bank / "sums", None, None))
    with serve(base) as server:
        words = ["--endpoint", server.url, "--endpoint-model", bank]
        play(capsys, bank / "config.toml", *words, "--output", tmp_path)
        asked = {body["messages"][-1]["content"]: body["model"] for body in server.bodies}
    assert set(asked.values()) == {"sums", "differences"}
    assert all((model == "sums") == ("+" in prompt) for prompt, model in asked.items())
    assert len(server.bodies) == 20


def test_each_adapter_of_a_bank_is_merged_into_a_model_of_its_own(bank, tmp_path, capsys):
    assert merge.main([str(bank), "--output", str(tmp_path / "merged")]) == 0
    reports = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(reports) == ["sums", "differences"]
    for name, report in reports.items():
        assert report["agrees"]
        assert report["merged"] == str(tmp_path / "merged" / name)
        assert (tmp_path / "merged" / name / "config.json").is_file()


def test_a_bank_of_which_one_adapter_cannot_be_merged_leaves_nothing(bank, tmp_path, capsys):
    broken, out = tmp_path / "broken", tmp_path / "a" / "merged"
    shutil.copytree(bank, broken)
    weights = broken / "differences" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert merge.main([str(broken), "--output", str(out)]) != 0
    assert not out.parent.exists()
    weights.write_bytes(whole)
    assert merge.main([str(broken), "--output", str(out)]) == 0


def test_what_is_no_whole_bank_is_one_line(bank, tmp_path, capsys):
    def fails(main, *words):
        assert main([str(word) for word in words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    out = ["--output", tmp_path / "out"]
    assert "--modes merged: the bank" in fails(evaluate.main, bank, "--modes", "merged", *out)
    assert "one adapter, and" in fails(merge.main, bank, "--check", tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(bank, broken)
    shutil.rmtree(broken / "differences")
    assert "lacks its adapter differences" in fails(evaluate.main, broken, *out)
    (broken / "bank.json").write_text('{"adapters": ["sums"]}')
    assert "cannot be read as a bank's: KeyError('pairs')" in fails(merge.main, broken)
