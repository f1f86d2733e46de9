"""Fixtures of the attacks: the host with what they look for, and who plays them."""

from collections.abc import Iterator

import pytest
from games import (
    COMMAND_TIMEOUT_S,
    STATEMENT_TIMEOUT_S,
    hide_in_other_episode,
    make_shell_env,
    make_sql_env,
)
from host import Host
from playing import Player

from agentpeft.envs.os_interaction.sandboxes import SandboxKind


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """What attacks look for on the host."""
    made = Host()
    yield made
    made.close()


@pytest.fixture(scope="module", params=["sqlite", "mysql", "docker"])
def database_spec(request: pytest.FixtureRequest) -> str:
    """What names a backend of DB-bench."""
    if request.param == "mysql":
        return str(request.getfixturevalue("mysql_url"))
    if request.param == "docker":
        return f"docker://{request.getfixturevalue('docker_image')}"
    return "sqlite"


@pytest.fixture(scope="module")
def sql_player(database_spec: str, host: Host) -> Iterator[Player]:
    """Plays on DB-bench, beside another episode with a secret."""
    env, other = make_sql_env(database_spec), make_sql_env(database_spec)
    hide_in_other_episode(other, host.word)
    spare = (6, 2) if database_spec == "sqlite" else (8, 0)  # a worker; connections
    yield Player(env, host, STATEMENT_TIMEOUT_S, spare=spare, default_task="change")
    env.close()
    other.close()


@pytest.fixture(scope="module")
def shell_player(sandbox_kind: SandboxKind, host: Host) -> Iterator[Player]:
    """Plays on OS-interaction, in sandboxes with small limits."""
    env = make_shell_env(sandbox_kind)
    spare = (2, 2) if sandbox_kind == "bubblewrap" else (16, 0)
    yield Player(env, host, COMMAND_TIMEOUT_S, spare=spare, default_task="state")
    env.close()
