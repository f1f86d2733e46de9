"""What a change of structure must leave as it is, whatever the processor.

`python tests/golden.py` writes `golden.json` anew where a change is meant; look at its difference.
"""

import gzip
import hashlib
import json
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
from typer.main import get_command

import agentpeft.envs  # noqa: F401 (registers the environments)
from agentpeft.launch.cli import COMMANDS, get_module

RECORD = Path(__file__).with_name("golden.json")
RECORDED = Path(__file__).parents[2] / "shared/data/recorded/coder_05b_db_bench.jsonl.gz"
"""A real model's episodes of DB-bench, a JSON object a line: `task_id` and `actions`."""
GAMES: dict[str, list[dict[str, Any]]] = {
    "AgentPEFT/Arithmetic-v0": [{}, {"num_digits": 3, "prompt": "compact", "split": "train"}],
    "AgentPEFT/GSM8K-v0": [{}, {"prompt": "compact", "split": "test"}],
    "AgentPEFT/DBBench-v0": [{}, {"prompt": "tools"}, {"prompt": "compact", "invent": True}],
    "AgentPEFT/OSInteraction-v0": [{"prompt": "compact"}, {"split": "train"}],
}
NUM_SEEDS = 4
EVERY_EPISODE = 40


def list_ids() -> dict[str, str]:
    """Returns the registered ids with their entry points."""
    return {
        env_id: str(spec.entry_point)
        for env_id, spec in sorted(gymnasium.registry.items())
        if env_id.startswith("AgentPEFT/")
    }


def list_options() -> dict[str, Any]:
    """Returns what `--help` says of every command."""
    return {name: _describe(get_command(import_module(get_module(name)).main)) for name in COMMANDS}


def draw_tasks(env_id: str) -> list[list[str]]:
    """Returns the ids of tasks, and hashes of their prompts and oracles' actions."""
    drawn = []
    for kwargs in GAMES[env_id]:
        with closing(gymnasium.make(env_id, **kwargs).unwrapped) as env:
            for seed in range(NUM_SEEDS):
                prompt, _ = env.reset(seed=seed)
                actions = "\n".join(env.oracle_actions(env.task))
                drawn.append([env.task.task_id, _hash(prompt), _hash(actions)])
    return drawn


def replay_episodes() -> list[list[Any]]:
    """Returns ids of recorded episodes, rewards, and hashes of the observations, on SQLite."""
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for number, line in enumerate(file) if number % EVERY_EPISODE == 0]
    env_id, played = "AgentPEFT/DBBench-v0", []
    with (
        closing(gymnasium.make(env_id, split="train").unwrapped) as train,
        closing(gymnasium.make(env_id, split="test").unwrapped) as test,
    ):
        for row in rows:
            env = test if ";test/" in row["task_id"] else train
            observations = [env.reset(options={"task": row["task_id"]})[0]]
            rewards = []
            for action in row["actions"]:
                observation, reward, *_ = env.step(action)
                observations.append(observation)
                rewards.append(reward)
            played.append([row["task_id"], rewards, _hash("\n".join(observations))])
    return played


MAKE: dict[str, Callable[[], Any]] = {"ids": list_ids, "options": list_options}


def _describe(command: Any) -> dict[str, Any]:
    """Returns a command's parameters with their help, and those of its commands."""
    options = {" ".join(param.opts): _in_one_line(param.help) for param in command.params}
    others = getattr(command, "commands", {})
    return options | {name: _describe(other) for name, other in sorted(others.items())}


def _in_one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    record = {name: make() for name, make in MAKE.items()}
    record["tasks"] = {env_id: draw_tasks(env_id) for env_id in GAMES}
    record["episodes"] = replay_episodes()
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
