"""Fixtures that the tests of several files share."""

from collections.abc import Iterator

import pytest
from small_sandbox import SMALL

from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import Database, DatabaseLimits
from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    Sandbox,
    SandboxKind,
    make_sandbox,
)


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def spec(request: pytest.FixtureRequest) -> str:
    """What names a backend."""
    is_mysql = request.param == "mysql"
    return str(request.getfixturevalue("mysql_url") if is_mysql else request.param)


@pytest.fixture(scope="module")
def database(spec: str) -> Iterator[Database]:
    """A backend, shared by the tests of a file."""
    limits = DatabaseLimits(statement_timeout_s=1.0, max_rows=100, max_database_mib=4)
    backend = open_database(spec, limits)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def kept_sandbox(sandbox_kind: SandboxKind) -> Iterator[Sandbox]:
    """A sandbox with small limits, shared by the tests of a file."""
    sandbox = make_sandbox(sandbox_kind, SMALL)
    yield sandbox
    sandbox.close()


@pytest.fixture
def sandbox(kept_sandbox: Sandbox) -> Sandbox:
    """A sandbox at the beginning of an episode."""
    kept_sandbox.reset()
    return kept_sandbox
