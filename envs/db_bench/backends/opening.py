"""From a `database` setting to a backend, shared by all environments of the process."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from gymnasium.error import ClosedEnvironmentError

from agentpeft.envs.core.errors import SettingsError, did_you_mean, shown
from agentpeft.envs.db_bench.backends.protocol import (
    Database,
    DatabaseLimits,
    DatabaseSession,
    Table,
)

URL_VARIABLE = "AGENTPEFT_MYSQL_URL"
DEFAULT_IMAGE = "mysql:8.4"
_BACKENDS = ("sqlite", "mysql", "docker")
_EXTRA = ("docker", "mysql", "requests", "sqlglot")
"""Packages that may not be installed."""

_Key = tuple[int, str, DatabaseLimits]


_lock = threading.Lock()  # also held while a backend starts, so that it starts once
_databases: dict[_Key, Database] = {}
_num_users: Counter[_Key] = Counter()


class _Handle:
    """One user's share of a backend: the last user's `close` closes the backend.

    A copy, pickled or not, is a share of its own.
    """

    def __init__(self, key: _Key, database: Database) -> None:
        self._key = key
        self._database = database
        self._is_closed = False

    def __reduce__(self) -> tuple[Callable[..., Database], tuple[str, DatabaseLimits]]:
        return open_database, self._key[1:]

    def open(self, tables: Sequence[Table]) -> DatabaseSession:
        if self._is_closed:
            raise ClosedEnvironmentError("this share of the database has been closed")
        return self._database.open(tables)

    def close(self) -> None:
        with _lock:
            if self._is_closed:
                return
            self._is_closed = True
            _num_users[self._key] -= 1
            if not _num_users[self._key]:
                del _num_users[self._key]
                _databases.pop(self._key).close()


def open_database(spec: str, limits: DatabaseLimits) -> Database:
    """Returns the backend that `spec` names; pair each call with one `close()`.

    `spec` is "sqlite", "mysql" (the server of the environment variable AGENTPEFT_MYSQL_URL),
    "mysql://user:password@host:port", "docker" or "docker://image". The same spec and limits give
    the same backend. Raises: SettingsError, EnvFault (no server).
    """
    if not isinstance(spec, str):
        raise SettingsError(f"database must be a name or a URL, got {shown(spec)}")
    key = (os.getpid(), spec, limits)  # a forked child cannot use its parent's connections
    with _lock:
        if key not in _databases:
            try:
                _databases[key] = _make_database(spec, limits)
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] not in _EXTRA:
                    raise
                kind = spec.partition("://")[0]
                raise SettingsError(
                    f"database {kind!r} needs the extra 'db' ({error}): pip install 'agentpeft[db]'"
                ) from None
        _num_users[key] += 1
        return _Handle(key, _databases[key])


def _make_database(spec: str, limits: DatabaseLimits) -> Database:
    kind, separator, address = spec.partition("://")
    if kind == "sqlite" and not separator:
        from agentpeft.envs.db_bench.backends.sqlite.database import SqliteDatabase

        return SqliteDatabase(limits)
    if kind == "mysql":
        from agentpeft.envs.db_bench.backends.server.database import MySQLDatabase

        return MySQLDatabase(spec if separator else _url_from_environment(), limits)
    if kind == "docker" and bool(separator) == bool(address):
        from agentpeft.envs.db_bench.backends.docker import DockerDatabase

        return DockerDatabase(address or DEFAULT_IMAGE, limits)
    # An address may hold a password, so only what stands before it is cited.
    hint = (
        f"; {kind!r} takes no such address" if kind in _BACKENDS else did_you_mean(kind, _BACKENDS)
    )
    raise SettingsError(f"unknown database {shown(kind + separator)}{hint}")


def _url_from_environment() -> str:
    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise SettingsError(
            f"database 'mysql' needs a server: set {URL_VARIABLE} to "
            "mysql://user:password@host:3306, or give such a URL as the database"
        )
    return url
