"""What the tests of the MySQL backend play with."""

from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table
from agentpeft.envs.db_bench.backends.server.session import MySQLSession

PEOPLE = Table(
    "people",
    (Column("name", "VARCHAR(40)"), Column("age", "INT")),
    (("Ann", 31), ("Bob", 25), ("it's; \\ ünï", None)),
)
LIMITS = DatabaseLimits(statement_timeout_s=1.0, max_rows=50, max_database_mib=8)
SLACK_S = 4.0
"""A server is late where the machine is shared; what nothing stops takes 9 s and more."""


def schema_of(session: MySQLSession) -> str:
    return session.slot.name


def assert_usable(session: MySQLSession) -> None:
    assert session.execute("SELECT COUNT(*) FROM people").rows == ((3,),)
