"""`agentpeft train` on a terminal: a bar, lines above it, and where to look afterwards."""

import pytest
from tiny_run import TINY


@pytest.mark.slow
def test_lines_of_the_log_stand_above_the_bar(tmp_path, monkeypatch, open_terminal):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    words = ["training.num_iterations=3", "output.checkpoint_interval=1"]
    terminal = open_terminal("train", "tiny.toml", *words, num_columns=100)
    shown = terminal.read_until(None, 300.0)
    assert terminal.process.wait(10) == 0
    lines = [line.strip() for line in shown.replace("\r", "\n").split("\n")]
    assert {"looking at what the run needs …", "loading the model …"} <= set(lines)
    saved = [line for line in lines if "saved outputs/" in line]
    assert len(saved) == 3 and all(line.startswith("saved outputs/tiny/") for line in saved)
    assert any(line.startswith("evaluation is not held out") for line in lines)
    (run,) = (tmp_path / "outputs/tiny").iterdir()
    assert f"agentpeft why outputs/tiny/{run.name}  # what it has learnt\r\nagentpeft rep" in shown
    log = tmp_path / "log"
    terminal = open_terminal("train", "tiny.toml", *words, errors=log)
    shown = terminal.read_until(None, 300.0)
    assert terminal.process.wait(10) == 0
    assert "saved outputs/" not in shown and "agentpeft why" not in shown
    assert log.read_text("utf-8").count("saved outputs/") == 3
