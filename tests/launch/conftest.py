"""A finished run that the tests of what comes after training share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from finished_run import make_finished_run
from terminal import Terminal

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of a finished run; `merged` two folders above is its model."""
    return make_finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="session")
def mcp_2(tmp_path_factory) -> Path:
    """A folder with version 2 of `mcp` and what it needs, which hides the version 1 of here."""
    folder = tmp_path_factory.mktemp("mcp-2")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*command, "mcp>=2,<3"], check=True, timeout=240)
    return folder


@pytest.fixture(params=[1, 2], ids=["mcp 1", "mcp 2"])
def mcp_variables(request) -> dict[str, str]:
    """The environment of a server that runs on each version of `mcp`."""
    folders = [str(ROOT)]
    if request.param == 2:
        folders.insert(0, str(request.getfixturevalue("mcp_2")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


@pytest.fixture
def ray_parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the folders of runs' own Rays lie; its path leaves room for those of sockets."""
    with TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder).resolve()


@pytest.fixture
def open_terminal():
    """Starts commands, each on a terminal of its own, and ends them."""
    opened = []

    def start(*words, **size):
        opened.append(Terminal(*map(str, words), **size))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()
