import json
import resource
from contextlib import contextmanager
from random import Random

import pytest

from agentpeft.envs import SettingsError
from agentpeft.policies.checkpointing.checkpoints import (
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    write_checkpoint,
    write_config,
)
from agentpeft.policies.checkpointing.reading import (
    latest_checkpoint,
    read_checkpoint,
    read_config,
    read_state,
    settings_of,
)
from agentpeft.policies.checkpointing.run_logs import append_episodes, seal_logs
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.loop.resuming import check_logs, set_aside_newer
from agentpeft.policies.settings.config import Settings


@contextmanager
def files_of_at_most(num_bytes):
    """Lets every longer write fail, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


STATE = {"position": 0, "num_episodes": 0, "settings": {}, "logs": {}, "log_sha256": {}}


def save(folder, iteration, size=0):
    state = json.dumps({**STATE, "iteration": iteration}).encode()
    path = checkpoint_path(folder, iteration)
    write_checkpoint(path, {"algorithm.json": state, "adapter/weights": b"w" * size})
    return path


def test_a_checkpoint_is_a_folder_of_its_files(tmp_path):
    path = save(tmp_path, 3, size=5)
    files = read_checkpoint(path)
    assert read_state(files) == {**STATE, "iteration": 3}
    assert set(files) == {"algorithm.json", "adapter/weights"}
    assert (path / "adapter" / "weights").read_bytes() == b"wwwww"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_else(tmp_path):
    path = save(tmp_path, 3, size=5)
    with files_of_at_most(1000), pytest.raises(CheckpointError, match="cannot write checkpoint"):
        save(tmp_path, 3, size=5000)
    assert (path / "adapter" / "weights").read_bytes() == b"wwwww"
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_of_the_same_name_is_replaced(tmp_path):
    save(tmp_path, 3, size=5)
    path = save(tmp_path, 3, size=2)
    assert (path / "adapter" / "weights").read_bytes() == b"ww"
    assert list(tmp_path.iterdir()) == [path]


def test_the_latest_is_the_newest_that_was_written_to_its_end(tmp_path):
    for iteration in (9, 10):
        save(tmp_path, iteration)
    (tmp_path / ".new-checkpoint-000011-77").mkdir()
    (tmp_path / ".new-checkpoint-000011-77" / "algorithm.json").write_text("{}")
    assert latest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 10)


def test_only_the_newest_are_kept(tmp_path):
    paths = [save(tmp_path, iteration) for iteration in (1, 2, 3)]
    prune_checkpoints(tmp_path, 2)
    assert list_checkpoints(tmp_path) == sorted(tmp_path.iterdir()) == paths[1:]


def test_what_is_no_checkpoint_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        latest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"algorithm\.json cannot be read"):
        read_state({})
    with pytest.raises(CheckpointError, match="lacks log_sha256, logs"):
        read_state(
            {"algorithm.json": b'{"iteration":1,"position":1,"num_episodes":1,"settings":{}}'}
        )


def flip_bit(content, rng):
    at = rng.randrange(len(content) * 8)
    return content[: at // 8] + bytes([content[at // 8] ^ 1 << at % 8]) + content[at // 8 + 1 :]


def edit_digit(content, rng):
    digits = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
    if not digits:
        return flip_bit(content, rng)
    at = rng.choice(digits)
    return content[:at] + str((content[at] - 47) % 10).encode() + content[at + 1 :]


DAMAGES = {
    "bit": flip_bit,
    "digit": edit_digit,
    "cut": lambda content, rng: content[: rng.randrange(len(content))],
    "longer": lambda content, rng: content + rng.randbytes(9),
    "empty": lambda content, rng: b"",
    "block": lambda content, rng: content[:8] + bytes(len(content[8:24])) + content[24:],
    "missing": None,
}


def make_run(run_dir):
    """Writes the files that a resumed run reads."""
    write_config(run_dir, Settings(seed=3))
    (run_dir / "metrics.jsonl").write_text('{"train/step": 0, "eval/success_rate": 0.25}\n' * 3)
    state = {**STATE, "iteration": 5, "position": 40, "settings": {"seed": 3}, **seal_logs(run_dir)}
    files = {
        "algorithm.json": json.dumps(state, indent=1).encode(),
        "training_stats.json": b'{"iteration": 5}',
        "learner.pt": Random(0).randbytes(5000),
        "adapter/adapter_model.safetensors": Random(1).randbytes(3000),
        "adapter/adapter_config.json": b'{"r": 16, "lora_alpha": 32}',
    }
    write_checkpoint(checkpoint_path(run_dir, 5), files)


def read_run(run_dir):
    """Returns all that a resumed run takes from its files."""
    files = read_checkpoint(latest_checkpoint(run_dir))
    state = read_state(files)
    check_logs(run_dir, state)
    size = state["logs"]["metrics.jsonl"]
    return read_config(run_dir), files, (run_dir / "metrics.jsonl").read_bytes()[:size]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_or_without_effect(tmp_path, damage):
    make_run(tmp_path)
    whole = read_run(tmp_path)
    names = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(names) == 8
    rng, num_refused = Random(damage), 0
    for _ in range(150):
        path = rng.choice(names)
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(DAMAGES[damage](content, rng))
        try:
            assert read_run(tmp_path) == whole
        except (CheckpointError, SettingsError) as error:
            assert path.name in str(error)
            num_refused += 1
        path.write_bytes(content)
    assert num_refused > 75


def test_a_setting_newer_than_the_checkpoint_has_its_default():
    whole = Settings(training={"lr": 1e-3, "kl_coeff": 0.0}).model_dump(mode="json")
    older = {**whole, "training": {"lr": 1e-3}}
    assert settings_of({"settings": older}) == whole
    changed = Settings(training={"lr": 1e-3, "kl_coeff": 0.5}).model_dump(mode="json")
    assert settings_of({"settings": changed}) == changed


def test_the_message_names_the_file_and_the_older_checkpoint_that_is_whole(tmp_path):
    for iteration in (1, 2, 3):
        save(tmp_path, iteration, size=5)
    for iteration in (2, 3):
        (checkpoint_path(tmp_path, iteration) / "adapter" / "weights").write_bytes(b"vwwww")
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(latest_checkpoint(tmp_path))
    message = str(caught.value)
    assert "adapter/weights does not match its SHA-256" in message
    assert message.endswith(f"before it is {str(checkpoint_path(tmp_path, 1))!r}")


def test_newer_checkpoints_are_set_aside_where_a_run_goes_on_from_an_older_one(tmp_path):
    paths = [save(tmp_path, iteration) for iteration in (1, 2, 3)]
    (tmp_path / "abandoned-checkpoint-000003").mkdir()
    set_aside_newer(tmp_path, 2)
    assert list_checkpoints(tmp_path) == paths[:2]
    assert read_checkpoint(tmp_path / "abandoned-checkpoint-000003")


def test_a_run_whose_folder_was_deleted_is_not_made_again(tmp_path):
    gone = tmp_path / "run"
    with pytest.raises(CheckpointError, match="cannot write checkpoint"):
        save(gone / "checkpoints", 1)
    with pytest.raises(CheckpointError, match="cannot write episodes"):
        append_episodes(gone / "sessions" / "train.jsonl", 1, [])
    assert not gone.exists()
