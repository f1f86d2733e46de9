"""`agentpeft train` on a terminal: a bar, lines above it, and where to look afterwards."""

import json

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
    ending = [line for line in lines if line][-5:]
    assert ending[0].startswith("success ") and " of 20 were trained on), 3 iterations" in ending[0]
    assert ending[1] == f"adapter: outputs/tiny/{run.name}/checkpoints/checkpoint-000003/adapter"
    assert ending[2:] == [
        f"next: agentpeft why outputs/tiny/{run.name}",
        f"agentpeft report outputs/tiny/{run.name}",
        f"agentpeft play outputs/tiny/{run.name} --model outputs/tiny/{run.name}",
    ]
    log = tmp_path / "log"
    terminal = open_terminal("train", "tiny.toml", *words, "--json", num_columns=2000, errors=log)
    shown = terminal.read_until(None, 300.0)
    assert terminal.process.wait(10) == 0
    assert "saved outputs/" not in shown and "agentpeft why" not in shown
    assert json.loads(shown[shown.index('{"before"') :])["adapter"]
    assert log.read_text("utf-8").count("saved outputs/") == 3
