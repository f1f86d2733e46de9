"""Requests that an engine has under way while a test goes on."""

import asyncio
import threading


class Asking:
    """Requests of sessions that are open for them, asked together in a thread of their own."""

    def __init__(self, engine, requests):
        self._engine, self._requests, self._answers = engine, requests, None
        engine.update_sessions(opened=[request.session for request in requests])
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()))
        self._thread.start()

    async def _ask(self):
        self._answers = await asyncio.gather(*map(self._engine.generate, self._requests))

    def finish(self):
        """Waits for the answers; the sessions stay open."""
        self._thread.join(60)
        return self._answers
