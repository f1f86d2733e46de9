"""Commands that read a run: what is damaged, or no run at all, is one line and status 2."""

import shutil

import pytest

from agentpeft.launch.cli import main
from agentpeft.launch.reporting.run_data import read_rows
from agentpeft.launch.run.run_folder import find_adapter
from agentpeft.policies.errors import CheckpointError

METRICS, SESSIONS = "metrics.jsonl", "sessions/train.jsonl"
EPISODE = (
    b'{"iteration": 9, "group_id": 0, "sample": 0, "task_id": "t", "outcome": "success", '
    b'"episode_return": 1, "messages": []}'
)


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    """A copy of the finished run at outputs/e/run, below the present folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(finished, tmp_path / "outputs/e/run", symlinks=True)


def error_of(capsys, *words):
    capsys.readouterr()
    assert main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "expected an object, got [1]"),
        (b"\xff\xfe", "no JSON"),
        (b"{}", "is damaged or missing"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_a_line_that_is_no_row_is_named(copied, capsys, line, message):
    run = str(copied)
    readers = {
        METRICS: [["watch", run], ["why", run], ["diff", run, run], ["report", run]],
        SESSIONS: [
            ["watch", run],
            ["replay", run],
            ["replay", run, "train-0-0"],
            ["report", run],
            ["export", run, "--format", "unpaired"],
        ],
    }
    for name, commands in readers.items():
        path = copied / name
        whole = path.read_bytes()
        path.write_bytes(whole + line + b"\n")
        for words in commands:
            said = error_of(capsys, *words)
            assert name in said and "line" in said and message in said
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        (METRICS, b'{"train/step": 4, "time/total_s": "long"}', "time/total_s is no number"),
        (METRICS, b'{"train/step": "last"}', "'train/step' is damaged or missing"),
        (
            SESSIONS,
            EPISODE.replace(b"[]", b'[["user"]]'),
            "'messages' is damaged or missing",
        ),
        (SESSIONS, EPISODE.replace(b'"t"', b"7"), "'task_id' is damaged or missing"),
        (SESSIONS, EPISODE.replace(b"success", b"won"), "'outcome' is damaged or missing"),
        (
            SESSIONS,
            EPISODE.replace(b'"sample": 0', b'"skills": 3'),
            "'sample' is damaged or missing",
        ),
        (
            SESSIONS,
            EPISODE.replace(b"1,", b'1, "skills": "add",'),
            "'skills' is damaged or missing",
        ),
    ],
)
def test_a_row_with_a_damaged_field_is_named(copied, capsys, name, line, message):
    with (copied / name).open("ab") as file:
        file.write(line + b"\n")
    assert message in error_of(capsys, "watch", str(copied))


def test_halves_of_characters_are_no_damage(copied):
    texts = (rb"a \ud800 b", rb"\\ud800", rb"\ud83d\ude00")
    with (copied / SESSIONS).open("ab") as file:
        for text in texts:
            file.write(EPISODE.replace(b"[]", b'[["user", "%s"]]' % text) + b"\n")
    rows = list(read_rows(copied / SESSIONS))
    assert [row["messages"][0][1] for row in rows[-3:]] == ["a \ud800 b", "\\ud800", "\U0001f600"]
    assert main(["watch", str(copied)]) == 0


@pytest.mark.parametrize("words", [["merge"], ["evaluate"], ["probe", "http://127.0.0.1:9/v1"]])
def test_changed_weights_of_a_checkpoint_are_refused(copied, capsys, words):
    (weights,) = copied.glob("checkpoints/checkpoint-*3/adapter/*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    words = [*words, "--adapter", str(copied)] if words[0] == "probe" else [*words, str(copied)]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "does not match its SHA-256" in said and "newest whole one before it is" in said
    elsewhere = shutil.copytree(weights.parent, copied.parent / "elsewhere")
    assert find_adapter(elsewhere) == elsewhere.resolve()
    (weights.parents[1] / "seen_tasks.bin").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors does not match"):
        find_adapter(weights.parent)
    manifest = weights.parents[1] / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_text("{")
    with pytest.raises(CheckpointError, match=r"manifest\.json is no manifest"):
        find_adapter(weights.parent)
    manifest.write_bytes(whole)
    shutil.rmtree(weights.parent)
    assert main(words) == 1
    assert "is missing" in capsys.readouterr().err


def test_damaged_settings_are_named(copied, capsys):
    (copied / "config.toml").write_text("x = [", "utf-8")
    for words in (["watch", str(copied)], ["diff", str(copied), str(copied)]):
        assert "config.toml is damaged: Invalid" in error_of(capsys, *words)


@pytest.mark.parametrize(
    "words",
    [
        ["watch", "{long}"],
        ["train", "{long}"],
        ["merge", "{long}"],
        ["report", "{run}", "--output", "{long}"],
        ["replay", "{run}", "train-{digits}-0"],
        ["train", "quickstart", "seed={digits}"],
        ["train", "quickstart", "experiment={long}"],
        ["train", "quickstart", "tiny.num_layers=99999"],
    ],
)
def test_what_is_too_long_or_too_large_is_one_line(copied, capsys, words):
    values = {"long": "a" * 5000, "digits": "9" * 5000, "run": copied}
    error_of(capsys, *(word.format(**values) for word in words))


@pytest.mark.parametrize("wrong", ['"many"', "2.5", "[1]", "2026-01-01"])
def test_a_setting_of_another_type_is_named(copied, capsys, wrong):
    config = copied / "config.toml"
    config.write_text(
        config.read_text("utf-8").replace("num_iterations = 3", f"num_iterations = {wrong}"),
        "utf-8",
    )
    for command in ("watch", "why"):
        assert "training.num_iterations must be a whole number" in error_of(
            capsys, command, str(copied)
        )


def test_the_run_that_may_be_meant_is_named(copied, capsys):
    commands = [["watch"], ["why"], ["diff", str(copied)], ["replay"], ["play"], ["evaluate"]]
    for words in [*commands, ["train", "--resume"]]:
        said = error_of(capsys, *words, "outputs")
        assert said.endswith("in 'outputs' itself; the newest one below it is outputs/e/run")
    said = error_of(capsys, "watch", "outputs/e/run/checkpoints/best")
    assert said.endswith("which is a part of the run outputs/e/run")
    said = error_of(capsys, "train", "outputs/e/run")
    assert "is a run, no config: `agentpeft train --resume outputs/e/run` continues it" in said


def test_a_run_that_has_measured_nothing_is_no_missing_run(copied, capsys):
    (copied / METRICS).write_bytes(b"")
    assert "the run has measured nothing yet" in error_of(capsys, "why", str(copied))


def test_arguments_of_an_environment_are_not_repeated_where_one_is_unknown(capsys):
    url = "database=mysql://root:secret@127.0.0.1:9"
    said = error_of(capsys, "play", "AgentPEFT/DBBench-v0", url, "prmpt=compact")
    assert "unknown setting 'prmpt'; did you mean 'prompt'?" in said and "secret" not in said
