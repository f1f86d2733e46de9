"""Runs whose files were cut, emptied or edited: `--resume` is one line and exit status 1 or 2."""

import json
import shutil
from tempfile import gettempdir

import pytest
from tiny_run import TINY

from agentpeft.launch.train import main
from agentpeft.policies.checkpointing.checkpoints import list_checkpoints, write_checkpoint
from agentpeft.policies.checkpointing.reading import read_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run's folder."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(TINY, encoding="utf-8")
    few = ["warm_start.num_steps=0", "training.num_iterations=1"]
    assert main([str(folder / "tiny.toml"), f"output.dir={folder}", *few]) == 0
    return next((folder / "tiny").iterdir())


@pytest.fixture
def resume(whole, tmp_path, capsys):
    """Resumes a copy of the run after `damage(run_dir, checkpoint)`; returns status and line."""

    def run(damage, *, is_refused=True):
        run_dir = tmp_path / whole.name
        shutil.copytree(whole, run_dir)
        damage(run_dir, list_checkpoints(run_dir / "checkpoints")[-1])
        capsys.readouterr()
        status = main(["--resume", str(run_dir), "training.num_iterations=2"])
        output, errors = capsys.readouterr()
        shutil.rmtree(run_dir)
        assert not (output and is_refused)
        return status, "".join(errors.splitlines()[-1:]), errors

    return run


def cut(name, share):
    def damage(run_dir, checkpoint):
        path = next(p for p in (run_dir / name, checkpoint / name) if p.exists())
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return damage


@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize(
    "name",
    [
        *("metrics.jsonl", "sessions/train.jsonl", "config.toml"),
        *("learner.pt", "algorithm.json", "manifest.json", "adapter/adapter_model.safetensors"),
    ],
)
def test_a_file_that_was_cut_is_named(resume, name, share):
    status, line, errors = resume(cut(name, share))
    assert status == (2 if name == "config.toml" else 1)
    assert line.startswith("error: ") and name in line and "Traceback" not in errors


def changed(name, change):
    """Rewrites one file, and the manifest that belongs to it."""

    def damage(run_dir, checkpoint):
        files = read_checkpoint(checkpoint)
        files[name] = change(files[name])
        write_checkpoint(checkpoint, {n: c for n, c in files.items() if n != "manifest.json"})

    return damage


def without(key):
    return lambda content: json.dumps({k: v for k, v in json.loads(content).items() if k != key})


KEYS = ("iteration", "position", "num_episodes", "settings", "logs", "log_sha256")


@pytest.mark.parametrize("key", KEYS)
def test_a_state_without_a_key_is_refused(resume, key):
    change = without(key)
    status, line, _ = resume(changed("algorithm.json", lambda text: change(text).encode()))
    assert status == 1 and f"lacks {key}" in line


def test_a_checkpoint_of_before_there_were_curricula_is_gone_on_from(resume):
    """It has the defaults of the settings that it lacks, and a position alone."""

    def make_old(content):
        state = json.loads(content)
        del state["curriculum"], state["settings"]["curriculum"]
        del state["settings"]["training"]["dynamic_sampling"]
        return json.dumps(state).encode()

    damage = changed("algorithm.json", make_old)
    assert resume(damage, is_refused=False)[0] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"x" * len(content),
        lambda content: b"\x80\x02." + content,
    ],
    ids=["half", "empty", "text", "pickle"],
)
def test_a_learner_s_state_that_is_none_is_refused(resume, change):
    status, line, errors = resume(changed("learner.pt", change))
    assert status == 1 and "the learner's state cannot be read" in line
    assert "Traceback" not in errors


def test_another_adapter_is_refused_without_the_name_of_a_temporary_folder(resume):
    def change(content):
        return json.dumps(json.loads(content) | {"r": 7}).encode()

    status, line, _ = resume(changed("adapter/adapter_config.json", change))
    assert status == 2 and "the adapter of the checkpoint has the lora.rank 7" in line
    assert f"{gettempdir()}/tmp" not in line
