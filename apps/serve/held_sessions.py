"""`HeldSessions`: sessions that a request has opened, which belong to no connection.

OpenEnv's client of tools opens one by a request over HTTP, plays it over a WebSocket that names its
id, and calls tools by further requests. The library keeps such a session until it is told to end
it; here it ends, too, when nothing has come for it for as long as a connection may be silent.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from agentpeft.apps.serve.metrics import ServerMetrics
from agentpeft.apps.serve.played_session import PlayedSession

_MAX_USERS = 16
"""The most requests of one session at a time, of which one is carried out."""


class NoSessionError(Exception):
    """There is no such session, or it is another connection's."""


class NoPlaceError(Exception):
    """All places for sessions, or for requests of one, are taken."""


class SessionPlaces:
    """How many sessions a server has, and may have."""

    def __init__(self, num_places: int, metrics: ServerMetrics) -> None:
        """`metrics` are told of the number of sessions."""
        self.num_places, self.num_sessions = num_places, 0
        self._metrics = metrics

    def check(self, num_others: int = 0) -> None:
        """Raises: NoPlaceError where there is no place for one more, or for one of `num_others`."""
        if max(self.num_sessions, num_others) >= self.num_places:
            raise NoPlaceError(f"all {self.num_places} sessions are taken: try again later")

    def count(self, change: int) -> None:
        """Counts a session that begins (1), or has ended (-1)."""
        self.num_sessions += change
        self._metrics.sessions.set(self.num_sessions)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Counts a session for as long as the block lasts."""
        self.count(1)
        try:
            yield
        finally:
            self.count(-1)


@dataclass(eq=False)
class _Held:
    """A session that is held for its client; `env_name` is the environment's that it plays."""

    session: PlayedSession
    env_name: str
    num_users: int = 0
    is_connected: bool = False
    is_ending: bool = False
    change: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something came to its end: a use, or the session."""
    used_s: float = field(default_factory=time.monotonic)


class HeldSessions:
    """The sessions of a server that requests have opened, by id; who knows an id may use it."""

    def __init__(self, places: SessionPlaces, idle_s: float) -> None:
        """One that nobody has used for `idle_s` is closed."""
        self._places, self._idle_s = places, idle_s
        self._held: dict[str, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, session: PlayedSession, env_name: str) -> str:
        """Holds a new session, and returns its id. Raises: NoPlaceError."""
        self._places.check()
        self._places.count(1)
        session_id = secrets.token_urlsafe(24)
        held = self._held[session_id] = _Held(session, env_name)
        task = asyncio.get_running_loop().create_task(self._hold(session_id, held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return session_id

    def is_open(self, session_id: str) -> bool:
        """Returns whether there is such a session."""
        return session_id in self._held

    def is_used(self, session_id: str) -> bool:
        """Returns whether requests of a session are answered, or were not long ago."""
        held = self._held.get(session_id)
        if held is None:
            return False
        is_asked = held.num_users > held.is_connected
        return is_asked or time.monotonic() - held.used_s < self._idle_s

    @asynccontextmanager
    async def use(
        self, session_id: object, env_name: str, *, is_connection: bool = False
    ) -> AsyncIterator[PlayedSession]:
        """Yields a session, which does not end meanwhile.

        Raises: NoSessionError, NoPlaceError.
        """
        held = self._find(session_id, env_name)
        if is_connection and held.is_connected:
            raise NoSessionError("another connection plays this session")
        if held.num_users >= _MAX_USERS:
            raise NoPlaceError(f"{_MAX_USERS} requests of this session wait: try again later")
        held.is_connected |= is_connection
        held.num_users += 1
        held.used_s = time.monotonic()
        try:
            yield held.session
        finally:
            held.num_users -= 1
            held.used_s = time.monotonic()
            held.change.set()
            if is_connection:
                held.is_connected = False

    def close(self, session_id: object, env_name: str) -> bool:
        """Ends a session, when nobody uses it any more; returns whether that is so now.

        Raises: NoSessionError.
        """
        held = self._find(session_id, env_name)
        held.is_ending = True
        held.change.set()
        return held.num_users == 0

    def _find(self, session_id: object, env_name: str) -> _Held:
        held = self._held.get(session_id) if isinstance(session_id, str) else None
        if held is None or held.env_name != env_name or held.is_ending:
            raise NoSessionError("no session of this environment has this id")
        return held

    async def _hold(self, session_id: str, held: _Held) -> None:
        """Keeps a session until it ends, then frees what it holds."""
        try:
            while held.num_users or self._left_s(held) > 0:
                held.change.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if held.num_users else self._left_s(held)):
                        await held.change.wait()
            del self._held[session_id]
            await held.session.close()
        finally:
            self._places.count(-1)

    def _left_s(self, held: _Held) -> float:
        """Returns the seconds after which a session ends that nobody uses."""
        return 0.0 if held.is_ending else held.used_s + self._idle_s - time.monotonic()
