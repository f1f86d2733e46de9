"""How many sessions' steps are carried out at a time: `Turns`.

Each session has a thread of its own, but Python computes in one at a time. Where many do, they take
the interpreter from one another: an episode of DB-bench took 1.4 times the processor time. Steps
that wait on other processes have places too: without a limit those of OS-interaction were as many a
second, but the slowest of a hundred took 540 to 650 ms in place of 410 to 420 (64 sessions).
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_COMPUTING = (1, 0.1)
_WAITING = (8 * (os.cpu_count() or 1), 1.0)


class Turns:
    """Places for so many steps at a time; one that takes long goes on without its place."""

    def __init__(self, num_places: int, patience_s: float) -> None:
        """`patience_s`: how long a step may keep a place from others."""
        self._places = asyncio.Semaphore(num_places)
        self._patience_s = patience_s

    @classmethod
    def of_steps(cls, *, that_wait: bool) -> "Turns":
        """Returns those of steps that wait on other processes, or else compute."""
        return cls(*(_WAITING if that_wait else _COMPUTING))

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits for a place, which the block then has."""
        await self._places.acquire()
        is_held = True

        def leave() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._places.release()

        late = asyncio.get_running_loop().call_later(self._patience_s, leave)
        try:
            yield
        finally:
            late.cancel()
            leave()
