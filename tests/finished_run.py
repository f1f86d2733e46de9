"""A finished run with episodes of several turns and returns, and its base model as a folder."""

from pathlib import Path

from agentpeft.launch.run.run_folder import read_start
from agentpeft.launch.train import main
from agentpeft.policies.models.tiny_cache import load_tiny

SETTINGS = """
experiment = "finished"
num_threads = 1
tiny = {hidden_size = 32, num_layers = 1}
lora = {rank = 4, alpha = 8.0}
warm_start = {num_steps = 60, batch_size = 16, lr = 1e-2}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 3, num_groups = 4, group_size = 4, lr = 1e-2}
evaluation = {num_tasks = 6, interval = 1}
output = {loggers = ["episodes"]}

[environment]
kwargs = {num_digits = 1, max_turns = 3, invalid_ends = false, reward = {length_cost = 0.1}}
"""
"""Shorter answers have higher returns, so that a model that is never right has preferences too."""


def make_finished_run(folder: Path) -> Path:
    """Trains for seconds and returns the run's folder; `folder`/merged is the model of its base."""
    config = folder / "finished.toml"
    config.write_text(SETTINGS, encoding="utf-8")
    assert main([str(config), f"output.dir={folder}"]) == 0
    base = load_tiny(read_start([str(config)], []).settings)
    base.model.save_pretrained(folder / "merged")
    base.tokenizer.save_pretrained(folder / "merged")
    (run_dir,) = (folder / "finished").iterdir()
    return run_dir
