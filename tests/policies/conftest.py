"""Algorithms with the settings of a test file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides


@pytest.fixture
def build(
    request, tmp_path: Path, tmp_path_factory, monkeypatch
) -> Iterator[Callable[..., Algorithm]]:
    """Starts algorithms with the file's `TINY` settings and overrides; stops them at the end."""
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    started: list[Algorithm] = []

    def start(name: str, *overrides: str, **classes: type) -> Algorithm:
        settings = Settings(**with_overrides({}, (*request.module.TINY, *overrides)))
        started.append(Algorithm(settings, tmp_path / name, **classes))
        return started[-1]

    yield start
    for algorithm in started:
        algorithm.stop()
