"""The temporary folder of a run's own Ray, and what is left of both."""

from pathlib import Path

import pytest

from agentpeft.launch.run.ray_folder import ray_folder


def test_logs_outlive_a_run_that_failed(ray_parent, tmp_path):
    with pytest.raises(ZeroDivisionError), ray_folder(tmp_path / "logs") as folder:
        assert folder.parent == ray_parent
        (folder / "session_2026" / "logs").mkdir(parents=True)
        (folder / "session_2026" / "logs" / "raylet.out").write_text("why")
        raise ZeroDivisionError
    assert (tmp_path / "logs" / "raylet.out").read_text() == "why"
    with ray_folder(tmp_path / "none") as folder:
        (folder / "session_2026" / "logs").mkdir(parents=True)
    assert not (tmp_path / "none").exists()


def test_a_path_that_is_too_long_for_sockets_is_left_for_another(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 10)
    long.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    monkeypatch.delenv("TMPDIR", raising=False)
    with ray_folder(tmp_path / "logs") as folder:
        assert folder.parent == Path("/tmp").resolve()
