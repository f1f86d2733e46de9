"""What settings name reaches another machine: here one whose cache, and files, are others."""

import json
from pathlib import Path

import pytest

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.adapter_files import rename_base
from agentpeft.policies.models.tiny_cache import compute_key
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.brought_files import FilesToSend, read_contents

ADAPTER = "adapter_config.json"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The other machine's cache."""
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def other():
    """Returns how another machine, on which some files are not, unpacks files."""

    def unpack(files, settings, gone=()):
        contents = read_contents(list(files.hashes))
        for path in gone:
            path.rename(path.with_name(f"not-{path.name}"))
        lacking = files.find_lacking()
        brought = [{path: contents[path] for path in lacking}]
        return lacking, *files.unpack(brought, settings)

    return unpack


def make_settings(**sections):
    return Settings(model={"name": "a/b"}, **{"warm_start": {"num_steps": 0}, **sections})


def test_task_files_and_chats_are_found_wherever_settings_name_them(
    tmp_path, monkeypatch, other, cache
):
    monkeypatch.chdir(tmp_path)
    names = ["train.jsonl", "index.json", "stage.jsonl", "source.jsonl", "chats.jsonl"]
    for name in names:
        Path(name).write_text(name)
    Path("held_out").mkdir()
    Path("held_out/test.jsonl").write_text("test")
    sources = [{"id": "AgentPEFT/GSM8K-v0", "kwargs": {"data": "source.jsonl"}}]
    settings = make_settings(
        environment={"kwargs": {"data": {"tasks": "train.jsonl", "index": "index.json"}}},
        evaluation={"env_kwargs": {"data": "held_out"}},
        curriculum={"stages": [{"data": "stage.jsonl"}, {"sources": sources}]},
        training={"chats": "chats.jsonl"},
        warm_start={"num_steps": 1},
    )
    files = FilesToSend.of(settings)
    gone = [tmp_path / name for name in (*names, "held_out")]
    lacking, there, _ = other(files, settings, gone)
    assert set(lacking) == set(map(str, gone))
    found = [
        *there.environment.kwargs["data"].values(),
        there.curriculum.stages[0]["data"],
        there.curriculum.stages[1]["sources"][0]["kwargs"]["data"],
        there.training.chats,
    ]
    assert [Path(path).read_text() for path in found] == names
    assert all(Path(path).is_relative_to(cache) for path in found)
    assert (Path(there.evaluation.env_kwargs["data"]) / "test.jsonl").read_text() == "test"
    assert there.model.name == "a/b"
    assert files.find_lacking() == []  # the next actor of that machine has it


def test_names_that_are_built_in_are_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "hub"):
        Path(name).mkdir()
    settings = make_settings(environment={"kwargs": {"data": "hub"}}, evaluation={"num_tasks": 0})
    assert FilesToSend.of(settings).paths == {}


def test_what_is_there_is_not_sent_and_what_is_there_with_another_content_is(tmp_path, other):
    same, changed = tmp_path / "same.jsonl", tmp_path / "changed.jsonl"
    same.write_text("same")
    changed.write_text("the driver's")
    settings = make_settings(
        environment={"kwargs": {"data": str(same)}},
        evaluation={"env_kwargs": {"data": str(changed)}},
    )
    files = FilesToSend.of(settings)
    contents = read_contents([str(changed)])
    changed.write_text("its own")
    assert files.find_lacking() == [str(changed)]
    there, _ = files.unpack([contents], settings)
    assert there.environment.kwargs["data"] == str(same)
    assert Path(there.evaluation.env_kwargs["data"]).read_text() == "the driver's"
    assert changed.read_text() == "its own"


def test_an_adapter_comes_with_its_base_and_names_it_where_it_is(tmp_path, other):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for folder in (base, adapter):
        folder.mkdir()
    (base / "config.json").write_text("{}")
    (adapter / ADAPTER).write_text(json.dumps({"base_model_name_or_path": str(base), "r": 2}))
    settings = make_settings().with_model(name=str(adapter))
    files = FilesToSend.of(settings)
    lacking, there, places = other(files, settings, [base])
    assert set(lacking) == {str(base), str(adapter)}  # the adapter is there, and names what is not
    config = json.loads((Path(there.model.name) / ADAPTER).read_text())
    assert config == {"base_model_name_or_path": places[str(base)], "r": 2}
    assert (Path(places[str(base)]) / "config.json").read_text() == "{}"
    saved = {ADAPTER: json.dumps(config).encode(), "adapter/weights": b"w"}
    back = rename_base(saved, {place: path for path, place in places.items()})
    assert json.loads(back[ADAPTER])["base_model_name_or_path"] == str(base)
    assert back["adapter/weights"] == b"w"


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    data = tmp_path / "tasks.jsonl"
    data.write_text("t")
    settings = make_settings(
        environment={"kwargs": {"data": str(data)}}, evaluation={"num_tasks": 0}
    )
    files, contents = FilesToSend.of(settings), read_contents([str(data)])
    data.unlink()
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SettingsError, match=r"the cache .* cannot be written .*AGENTPEFT_CACHE"):
        files.unpack([contents], settings)


def test_the_built_in_model_is_the_same_for_the_same_tasks_and_another_for_others(tmp_path):
    def key_of(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        own = {"environment": {"kwargs": {"data": str(path)}}, "evaluation": {"num_tasks": 0}}
        return compute_key(Settings(**own))

    first = key_of("a/tasks.jsonl", "one")
    assert key_of("b/tasks.jsonl", "one") == first
    assert key_of("a/tasks.jsonl", "two") != first
