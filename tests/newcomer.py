"""A newcomer's machine: a copy of the tree whose configs are short, and its commands on the path.

The documentation's blocks run in it as they stand. What they name and nobody has made yet (an
adapter, a model of the hub, a file of settings) is there under that name.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from docs_blocks import PAGES, ROOT, write_files

from agentpeft.launch import prepare_data
from agentpeft.launch.run.fast_dev_run import shorten
from agentpeft.launch.run.run_folder import read_start
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

RUN = "outputs/quickstart/20260101-120000"
"""The run that the pages speak of."""
QUICKSTART = "make quickstart\n"
"""The README's block that everything here begins with."""
SHIM = '#!/bin/sh\nexec {python} {words} "$@"\n'
COMMANDS = {
    "bin/python": "",
    "bin/agentpeft": "-P -m agentpeft.launch.cli",
    "bin/ray": "-P -m ray.scripts.scripts",
    ".venv/bin/python": "",
}


def short_settings(config: str, overrides: Sequence[str] = ()) -> Settings:
    """Returns a config's settings as `--fast-dev-run` has them, with a checkpoint at the end alone.

    The pages speak of that one.
    """
    settings = shorten(read_start([config], overrides).settings)
    ends = ["evaluation.interval=0", "output.checkpoint_interval=10"]
    return Settings(**with_overrides(settings.model_dump(), ends))


class Newcomer:
    """A tree, and the commands that run in it."""

    def __init__(self, tree: Path, home: Path) -> None:
        """Takes the folders as they are."""
        self.tree, self.home = tree, home

    def copy(self, folder: Path) -> "Newcomer":
        """Returns the same newcomer with a copy of the tree."""
        shutil.copytree(self.tree, folder, symlinks=True)
        return Newcomer(folder, self.home)

    def unpack(self) -> None:
        """Makes the tree, its configs short, and the commands."""
        self.home.mkdir()
        command = ["git", "ls-files", "-co", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in {n for n in listed.stdout.splitlines() if not n.startswith("tests/")}:
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        for name, words in COMMANDS.items():
            path = self.tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SHIM.format(python=sys.executable, words=words), "utf-8")
            path.chmod(0o755)
        for stamp in (".installed", ".installed-train"):
            (self.tree / ".venv" / stamp).touch()  # `make` has installed all
        for path in (self.tree / "launch/configs").glob("*.toml"):
            if "[model]" not in path.read_text("utf-8"):
                path.write_text(short_settings(str(path)).to_toml(), "utf-8")

    def run(
        self, script: str, changes: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a block of shell commands, which end at the first that fails."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "AGENTPEFT_"))}
        env = kept | {
            "PATH": f"{self.tree}/bin{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.tree),
            "HOME": str(self.home),
            "AGENTPEFT_CACHE": str(self.home / "cache"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.tree, env=env | dict(changes or {}), capture_output=True, text=True,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def run_quickstart(self) -> None:
        """Runs the README's first command, and puts what the pages name where they look."""
        done = self.run(QUICKSTART)
        assert done.returncode == 0, done.stdout + done.stderr
        (run,) = (self.tree / "outputs/quickstart").iterdir()
        run.rename(self.tree / RUN)
        adapter = self.tree / RUN / "checkpoints/checkpoint-000002/adapter"
        for name in ("adapter", "a", "b"):
            shutil.copytree(adapter, self.tree / "path/to" / name)
        for name in ("RUN_A", "RUN_B"):
            (self.tree / name).symlink_to(RUN)
        (base,) = (self.home / "cache").glob("tiny-*")
        for name in ("path/to/base", "Qwen/Qwen2.5-0.5B-Instruct"):
            shutil.copytree(base, self.tree / name)
        self._write_files()

    def add_late_episodes(self) -> None:
        """Gives the run a success and a failure of iteration 59, which the short one has not."""
        row = {"iteration": 59, "group_id": 0, "adapter_version": 59, "skills": [], "task_id": "t"}
        ends = [("success", 1.0, "Right."), ("failure", 0.0, "Wrong.")]
        text = "".join(
            json.dumps(
                row
                | {"sample": sample, "outcome": outcome, "episode_return": value}
                | {"num_turns": 1, "num_tokens": 2}
                | {"messages": [["user", "Go."], ["assistant", said]]}
            )
            + "\n"
            for sample, (outcome, value, said) in enumerate(ends)
        )
        path = self.tree / RUN / "sessions/train.jsonl"
        if not path.read_text("utf-8").endswith(text):
            with path.open("a", encoding="utf-8") as file:
                file.write(text)

    def _write_files(self) -> None:
        write_files(self.tree, PAGES)
        plain = ["environment.kwargs=", "warm_start.env_kwargs=", "evaluation.env_kwargs="]
        settings = short_settings("arithmetic_add", plain).to_toml()
        for name in ("my_settings.toml", "my.toml"):
            (self.tree / name).write_text(settings, "utf-8")
        tasks = str(self.home / "tasks.json")
        words = ["generate", "--num-tasks", "3", "--skills", "select", "--output", tasks]
        assert prepare_data.main(words) == 0
        entries = json.loads(Path(tasks).read_text("utf-8"))
        rows = [
            {k: v if isinstance(v, str) else repr(v) for k, v in entry.items()}
            | {"sample_index": index}
            for index, entry in entries.items()
        ]  # the hub's rows have their nested fields as text
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.tree / "rows.parquet")
