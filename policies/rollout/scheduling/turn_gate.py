"""`TurnGate`: holds an engine's turns back while its weights are changed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class TurnGate:
    """Turns pass while it is open; closing it waits for those under way. Of one event loop."""

    def __init__(self) -> None:
        self._num_turns = 0
        self._changed = asyncio.Condition()
        self._is_open = True

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Holds a turn, once the gate is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_open)
            self._num_turns += 1
        try:
            yield
        finally:
            self._num_turns -= 1
            if not self._is_open:
                async with self._changed:
                    self._changed.notify_all()

    async def close(self, hurry: Callable[[], None] | None = None) -> None:
        """Lets no turn begin, and returns when none is under way; `hurry` is to end these soon."""
        async with self._changed:
            self._is_open = False
            if hurry is not None:
                hurry()
            await self._changed.wait_for(lambda: self._num_turns == 0)

    async def open(self) -> None:
        """Lets turns begin."""
        async with self._changed:
            self._is_open = True
            self._changed.notify_all()
