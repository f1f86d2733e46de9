"""Trains from a file of settings, in Python.

```sh
PYTHONPATH=examples python examples/train_from_python.py examples/guess.toml
PYTHONPATH=examples python examples/train_from_python.py examples/guess.toml training.lr=5e-4
```
"""

import sys
from pathlib import Path

from agentpeft import AlgorithmConfig


def train(config_file: str, *overrides: str, run_dir: str | Path = "my_run") -> Path:
    """Trains as the file says, prints each iteration, and returns the last checkpoint."""
    config = AlgorithmConfig.from_toml(config_file, overrides)
    num_iterations = config.to_settings().training.num_iterations
    with config.build_algo(run_dir) as algo:
        print("success before:", algo.evaluate()["success_rate"])
        for iteration in range(1, num_iterations + 1):
            metrics = algo.train()
            print(iteration, metrics["train/avg_reward"], metrics["time/total_s"])
        print("success after:", algo.evaluate()["success_rate"])
        return algo.save_to_path()


if __name__ == "__main__":
    print(train(*sys.argv[1:]))
