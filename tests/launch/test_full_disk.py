"""A file that cannot grow, as on a full disk: the run ends with one line that names it."""

import resource
from contextlib import contextmanager
from tempfile import gettempdir

import pytest

from agentpeft.launch.train import main

TINY = """
experiment = "tiny"
environment = {kwargs = {num_digits = 1, prompt = "compact"}}
num_threads = 1
tiny = {hidden_size = 32, num_layers = 2}
warm_start = {num_steps = 0}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 3, num_groups = 4, group_size = 2}
evaluation = {num_tasks = 4}
output = {loggers = ["episodes"]}
"""
SIZES = {
    0: "cannot write into",
    20: "cannot write into",
    5200: "sessions/",
    20000: f"the adapter cannot be written to {gettempdir()}:",
}
"""By how many bytes a file may have: what is said."""


@contextmanager
def limited(size):
    """Limits the size of files that are written; the system says it as a full disk does.

    Only as long as the run: the tests' own report may go into a larger file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Runs the command whose model is in the cache; returns its status and last line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")

    def run(*arguments):
        status = main(["tiny.toml", *arguments])
        errors = capsys.readouterr().err
        assert "Traceback" not in errors
        return status, (errors.splitlines() or [""])[-1]

    assert run("training.num_iterations=0", "output.dir=first")[0] == 0
    return run


@pytest.mark.parametrize("size", SIZES)
def test_what_cannot_be_written_is_named(train, tmp_path, size):
    with limited(size):
        status, line = train()
    assert status == (2 if size < 100 else 1)
    assert SIZES[size] in line and "File too large" in line and ".new-" not in line
    assert str(tmp_path / "outputs/tiny") in line or size == 20000
