"""The docker backend: a real daemon, a real container, and what is left of them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import docker
import pytest
from docker.models.containers import Container

from agentpeft.envs import EnvFault, SettingsError
from agentpeft.envs.db_bench.backends.docker import DockerDatabase
from agentpeft.envs.db_bench.backends.protocol import (
    Column,
    DatabaseLimits,
    DatabaseSession,
    Table,
    TableContents,
    UnreadableTable,
)
from agentpeft.envs.system.processes import identify_process

T = Table("t", (Column("a", "INT"), Column("b", "TEXT")), ((1, "x"), (2, "y")))
LIMITS = DatabaseLimits(statement_timeout_s=1.0)
START = """
import os, sys
from agentpeft.envs.db_bench.backends.docker import DockerDatabase
from agentpeft.envs.system.processes import identify_process
DockerDatabase(sys.argv[1])
print(identify_process(os.getpid()), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def database(docker_image: str) -> Iterator[DockerDatabase]:
    database = DockerDatabase(docker_image, LIMITS)
    yield database
    database.close()


def containers(owner: str = identify_process(os.getpid())) -> list[Container]:
    """Returns the containers of one process: another test's may come and go at any time."""
    filters = {"label": f"agentpeft.db_bench={owner}"}
    return docker.from_env().containers.list(all=True, filters=filters, ignore_removed=True)


def test_episode_is_played_in_the_container(database: DockerDatabase) -> None:
    session = database.open([T])
    assert session.execute("SELECT b FROM t WHERE a = 2").rows == (("y",),)
    assert session.execute("SELECT SLEEP(9)").is_timeout
    session.execute("DELETE FROM t WHERE a = 1")
    contents = session.read_table("t")
    assert contents is not None
    assert contents.rows == ((2, "y"),)
    session.close()


@pytest.mark.parametrize(
    "definition",
    [
        "DISCARD TABLESPACE",
        "ADD COLUMN z INT AS (LOCATE(CONCAT(REPEAT('a', 100000), 'b'), REPEAT('a', 300000))) "
        "VIRTUAL",
    ],
)
def test_table_made_unreadable_is_no_fault(database: DockerDatabase, definition: str) -> None:
    session = database.open([T])
    session.execute(f"ALTER TABLE t {definition}")
    assert isinstance(session.read_table("t"), UnreadableTable)
    session.close()
    after = database.open([T])
    assert isinstance(after.read_table("t"), TableContents)
    after.close()


def test_server_is_bounded_and_on_loopback_only(database: DockerDatabase) -> None:
    (container,) = containers()
    settings = container.attrs["HostConfig"]
    assert settings["Memory"] > 0
    assert settings["PidsLimit"] > 0
    bindings = container.attrs["NetworkSettings"]["Ports"]["3306/tcp"]
    assert [binding["HostIp"] for binding in bindings] == ["127.0.0.1"]


def test_backends_of_one_process_share_the_server(
    database: DockerDatabase, docker_image: str
) -> None:
    before = containers()
    other = DockerDatabase(docker_image, DatabaseLimits(max_rows=5))
    assert containers() == before
    other.close()
    other.close()
    assert containers() == before
    database.open([T]).close()


@pytest.mark.slow
def test_server_that_restarts_faults_an_episode_and_serves_the_next(
    database: DockerDatabase,
) -> None:
    session = database.open([T])
    (container,) = containers()
    container.restart(timeout=5)
    with pytest.raises(EnvFault):
        session.execute("SELECT 1")
    session.close()
    assert open_when_back(database).execute("SELECT COUNT(*) FROM t").rows == ((2,),)


def open_when_back(database: DockerDatabase) -> DatabaseSession:
    for _ in range(100):
        try:
            return database.open([T])
        except EnvFault:
            time.sleep(0.2)
    raise AssertionError("the backend does not recover")


@pytest.mark.slow
def test_container_goes_with_its_last_user_and_the_dead_leave_none(docker_image: str) -> None:
    dead, owner = start(docker_image)
    assert len(containers(owner)) == 1
    dead.kill()
    dead.communicate()
    clean, own = start(docker_image)
    assert not containers(owner)
    assert len(containers(own)) == 1
    clean.communicate()
    assert clean.returncode == 0
    assert not containers(own)


def start(docker_image: str) -> tuple[subprocess.Popen[str], str]:
    """Returns a process with a database until its input ends, and as whom it owns containers."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, docker_image],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def test_missing_image_is_one_clear_line(docker_image: str) -> None:
    with pytest.raises(
        SettingsError, match=r"'no\.such\.host/image:1' is not there and cannot"
    ) as error:
        DockerDatabase("no.such.host/image:1", LIMITS)
    assert "\n" not in str(error.value)


def test_image_without_a_server_tells_its_last_words(docker_image: str) -> None:
    client = docker.from_env()
    base = client.containers.create(docker_image)
    broken = base.commit(
        "agentpeft/broken", conf={"Entrypoint": ["/bin/sh", "-c", "echo no server here; exit 3"]}
    )
    base.remove()
    before = containers()
    with pytest.raises(EnvFault, match=r"does not get ready: .*no server here"):
        DockerDatabase("agentpeft/broken", LIMITS)
    assert containers() == before
    client.images.remove(broken.id)


def test_missing_daemon_says_what_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(EnvFault, match=r"no docker daemon answers .*: start one") as error:
        DockerDatabase("mysql:8.4", LIMITS)
    assert "\n" not in str(error.value)
