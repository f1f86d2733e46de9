"""A run of seconds with the tiny model, for the commands that use what a run leaves."""

import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from agentpeft.launch.train import main
from agentpeft.policies.checkpointing.checkpoints import write_checkpoint

TINY = """
experiment = "tiny"
deterministic = true
environment = {kwargs = {num_digits = 1, prompt = "compact"}}
num_threads = 1
tiny = {hidden_size = 32, num_layers = 2}
lora = {rank = 4, alpha = 8.0}
warm_start = {num_steps = 60, batch_size = 16, lr = 1e-2}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 2, num_groups = 4, group_size = 2, lr = 1e-2}
evaluation = {num_tasks = 20}
output = {loggers = ["episodes"]}
"""

ANOTHER_MODEL = ("tiny.hidden_size=", "tiny.num_layers=")
"""What a command says beside `model.name`: the built-in model's shape is not for another."""


def make_run(folder: Path, overrides: Sequence[str] = ()) -> Path:
    """Trains in `folder` and returns the run's folder; its adapter's B is then far from zero."""
    config = folder / "tiny.toml"
    config.write_text(TINY, encoding="utf-8")
    printed = StringIO()
    with redirect_stdout(printed):
        assert main([str(config), f"output.dir={folder}", *overrides]) == 0
    adapter = Path(json.loads(printed.getvalue().splitlines()[-1])["adapter"]).absolute()
    path, rng = adapter / "adapter_model.safetensors", np.random.default_rng(0)
    weights = {n: w + 0.05 * rng.normal(size=w.shape) for n, w in load_file(path).items()}
    save_file({n: w.astype(np.float32) for n, w in weights.items()}, path, {"format": "pt"})
    seal(adapter.parent)
    return adapter.parents[2]


def seal(checkpoint: Path) -> None:
    """Writes a manifest for the files that a checkpoint has now."""
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    contents = {str(path.relative_to(checkpoint)): path.read_bytes() for path in files}
    contents.pop("manifest.json")
    write_checkpoint(checkpoint, contents)
