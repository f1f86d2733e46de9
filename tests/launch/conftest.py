"""A finished run that the tests of what comes after training share."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from finished_run import make_finished_run
from terminal import Terminal


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of a finished run; `merged` two folders above is its model."""
    return make_finished_run(tmp_path_factory.mktemp("finished"))


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
