"""The environment variables of the official MySQL and MariaDB images, and servers made with them.

The image is CI's own, of Debian's MariaDB, whose entrypoint honours them as the official ones do.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import quote

import docker
import mysql.connector
import pytest
from docker.models.containers import Container

from agentpeft.envs import EnvFault, Outcome, SettingsError, Taskset
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.generator import DBBenchGenerator

PASSWORD = "it's a p@ss/word"
READY_S = 60.0
Start = Callable[..., Container]
pytestmark = pytest.mark.slow


@pytest.fixture
def start(docker_image: str) -> Iterator[Start]:
    """Starts containers of the image with variables; they end with the test."""
    client = docker.from_env()
    started: list[Container] = []

    def run(**variables: str) -> Container:
        ports = {"3306/tcp": ("127.0.0.1", None)}
        started.append(
            client.containers.run(docker_image, environment=variables, ports=ports, detach=True)
        )
        return started[-1]

    yield run
    for container in started:
        container.remove(force=True, v=True)


def find_url(container: Container, user: str, password: str) -> str:
    """Returns the address of a container's server for a user, once it serves anyone."""
    container.reload()
    (port,) = container.ports["3306/tcp"]
    deadline_s = time.monotonic() + READY_S
    while container.logs().count(b"ready for connections") < 2:  # first without a network
        assert time.monotonic() < deadline_s, container.logs().decode()
        time.sleep(0.2)
    return f"mysql://{user}:{quote(password, safe='')}@127.0.0.1:{port['HostPort']}"


def play(url: str) -> Outcome:
    """Returns how the oracle's episode ends."""
    (task,) = Taskset.generate(DBBenchGenerator(skills=["insert"]), 1, seed=0)
    with closing(DBBenchEnv(database=url)) as env:
        env.reset(options={"task": task})
        for action in env.oracle_actions(task):
            info = env.step(action)[4]
    outcome: Outcome = info["outcome"]
    return outcome


@pytest.mark.parametrize(
    ("variables", "password"),
    [
        ({"MYSQL_ROOT_PASSWORD": PASSWORD}, PASSWORD),
        ({"MARIADB_ROOT_PASSWORD": PASSWORD, "MARIADB_ROOT_HOST": "%"}, PASSWORD),
        ({"MYSQL_ALLOW_EMPTY_PASSWORD": "yes", "MYSQL_ROOT_HOST": "%"}, ""),
        ({"MYSQL_RANDOM_ROOT_PASSWORD": "yes"}, None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_episode_is_played_as_the_root_that_the_variables_make(
    start: Start, variables: dict[str, str], password: str | None
) -> None:
    container = start(**variables)
    url = find_url(container, "root", password or "")
    if password is None:
        said = re.search(rb"GENERATED ROOT PASSWORD: (\S+)", container.logs())
        assert said is not None
        url = find_url(container, "root", said[1].decode())
    assert play(url) is Outcome.SUCCESS


def test_the_database_and_the_user_of_the_variables_stay_as_they_are(start: Start) -> None:
    own = {"MYSQL_DATABASE": "mine", "MYSQL_USER": "me", "MYSQL_PASSWORD": "secret"}
    container = start(MYSQL_ROOT_PASSWORD=PASSWORD, **own)
    url = find_url(container, "root", PASSWORD)
    port = int(url.rpartition(":")[2])
    with (
        closing(
            mysql.connector.connect(
                host="127.0.0.1", port=port, user="me", password="secret", database="mine"
            )
        ) as connection,
        closing(connection.cursor()) as cursor,
    ):
        cursor.execute("CREATE TABLE t (a INT)")
        cursor.execute("INSERT INTO t VALUES (3)")
        connection.commit()
        assert play(url) is Outcome.SUCCESS
        cursor.execute("SELECT a FROM t")
        assert cursor.fetchall() == [(3,)]
        cursor.execute("SHOW DATABASES")
        assert {name for (name,) in cursor.fetchall()} == {"information_schema", "mine"}
    with pytest.raises((EnvFault, SettingsError), match="denied") as error:
        play(find_url(container, "me", "secret"))
    assert "\n" not in str(error.value)


def test_root_of_the_container_alone_is_refused_in_one_line(start: Start) -> None:
    url = find_url(
        start(MYSQL_ROOT_PASSWORD=PASSWORD, MYSQL_ROOT_HOST="localhost"), "root", PASSWORD
    )
    with pytest.raises((EnvFault, SettingsError), match=r"not allowed to connect|denied") as error:
        play(url)
    assert "\n" not in str(error.value) and PASSWORD not in str(error.value)


def test_without_a_choice_of_password_the_server_does_not_start(start: Start) -> None:
    container = start(MYSQL_DATABASE="mine")
    assert container.wait(timeout=60)["StatusCode"] == 1
    assert b"password option is not specified" in container.logs()
