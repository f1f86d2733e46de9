"""Training on environments that a server has: the same run, to the last digit."""

import pytest
from env_server import TOKEN, env_server
from tiny_run import TINY

from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.train import main

SERVED = 'id = "AgentPEFT/Remote-v0", kwargs = {{url = "{url}", env_id = "AgentPEFT/Arithmetic-v0"'


def train(folder, config):
    """Returns the metrics of a run, without its times, and its episodes."""
    folder.mkdir()
    path = folder / "config.toml"
    path.write_text(config, encoding="utf-8")
    assert main([str(path), f"output.dir={folder}"]) == 0
    (run,) = (folder / "tiny").iterdir()
    rows = read_metrics(run)
    episodes = (run / "sessions" / "train.jsonl").read_text(encoding="utf-8")
    kept = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
    return kept, episodes.replace("AgentPEFT/Remote-v0", "AgentPEFT/Arithmetic-v0")


@pytest.mark.slow
def test_a_run_on_a_server_is_the_run_without_one(tmp_path, cache_folder, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_TOKEN", TOKEN)
    with env_server("AgentPEFT/Arithmetic-v0", "--allow-oracle", "--client-kwargs", "*") as server:
        remote = TINY.replace("kwargs = {", SERVED.format(url=server.url) + ", ")
        there = train(tmp_path / "there", remote)
        assert server.metric("agentpeft_episodes_total") > 40
    assert there == train(tmp_path / "here", TINY)
