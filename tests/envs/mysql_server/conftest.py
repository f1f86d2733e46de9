"""Fixtures of the tests of the MySQL backend."""

from collections.abc import Iterator

import pytest
from mysql_episodes import LIMITS, PEOPLE

from agentpeft.envs.db_bench.backends.server.client import Address, MySQLClient
from agentpeft.envs.db_bench.backends.server.database import MySQLDatabase
from agentpeft.envs.db_bench.backends.server.session import MySQLSession


@pytest.fixture(scope="module")
def database(mysql_url: str) -> Iterator[MySQLDatabase]:
    database = MySQLDatabase(mysql_url, LIMITS)
    yield database
    database.close()


@pytest.fixture
def session(database: MySQLDatabase) -> Iterator[MySQLSession]:
    session = database.open([PEOPLE])
    yield session
    session.close()


@pytest.fixture
def administrator(mysql_url: str) -> Iterator[MySQLClient]:
    client = MySQLClient(Address.parse(mysql_url), 10)
    yield client
    client.close()
