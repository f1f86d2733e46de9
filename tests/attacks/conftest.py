"""Fixtures of the attacks: the host with what they look for, and who plays them."""

import os
import time
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

from agentpeft.envs.db_bench.backends.server.client import Address, MySQLClient
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind

INNOCENT_EVERY = 4
"""On docker, where making a container or a schema takes most of the suite's time."""
_KILLED = (
    "SELECT ID, LEFT(INFO, 60) FROM information_schema.PROCESSLIST "
    "WHERE USER LIKE 'agentpeft%' AND COMMAND = 'Killed'"
)


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
    url = database_spec if database_spec.startswith("mysql://") else None
    client = None if url is None else MySQLClient(Address.parse(url), 10)

    known = set()

    def find_killed() -> list[str]:
        """Waits for killed statements to end; returns those that go on, once.

        A search in a large text takes 10 s of processor time before the server looks at a kill.
        """
        for _ in range(400 if client else 0):
            killed = [row for row in client.query(_KILLED) if row not in known]
            if not killed:
                return []
            time.sleep(0.1)
        known.update(killed if client else ())
        return [f"goes on after its kill: {text}" for _, text in killed] if client else []

    player = Player(
        env,
        host,
        STATEMENT_TIMEOUT_S,
        spare=spare,
        default_task="change",
        find_leftovers=find_killed,
        innocent_every=INNOCENT_EVERY if database_spec.startswith("docker://") else 1,
    )
    yield player
    assert player.play_innocent()
    env.close()
    other.close()
    if client is not None:
        client.close()


@pytest.fixture(scope="module")
def shell_player(sandbox_kind: SandboxKind, host: Host) -> Iterator[Player]:
    """Plays on OS-interaction, in sandboxes with small limits.

    A command has a second by the clock, in which its processes may use every core.
    """
    env = make_shell_env(sandbox_kind)
    spare = (2, 2) if sandbox_kind == "bubblewrap" else (16, 0)
    player = Player(
        env,
        host,
        COMMAND_TIMEOUT_S * len(os.sched_getaffinity(0)),
        spare=spare,
        default_task="state",
        innocent_every=INNOCENT_EVERY if sandbox_kind == "docker" else 1,
    )
    yield player
    assert player.play_innocent()
    env.close()
