"""A cache of bounded size in bytes, for results whose keys an agent can choose.

A number of entries bounds nothing where an agent makes each entry large.
"""

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class ByteCache(Generic[KeyT, ValueT]):
    """Keeps the results of late, about `max_bytes` of them; thread-safe.

    It holds two generations. What is found in the older one moves to the newer one; when that is
    half of the whole, the older one goes. So a hit is one look-up, and what is used stays.
    """

    def __init__(self, max_bytes: int) -> None:
        """Holds nothing yet."""
        self._max_bytes = max_bytes // 2
        self._lock = threading.Lock()
        self._newer: dict[KeyT, tuple[ValueT, int]] = {}
        self._older: dict[KeyT, tuple[ValueT, int]] = {}
        self._num_bytes = 0

    def find(self, key: KeyT) -> ValueT | None:
        """Returns what is kept for a key, None where nothing is."""
        entry = self._newer.get(key)
        if entry is None:
            entry = self._older.get(key)
            if entry is None:
                return None
            self.keep(key, *entry)
        return entry[0]

    def keep(self, key: KeyT, value: ValueT, num_bytes: int) -> None:
        """Keeps a result that takes about `num_bytes`, its key included."""
        if num_bytes > self._max_bytes:
            return
        with self._lock:
            if key in self._newer:
                return
            if self._num_bytes + num_bytes > self._max_bytes:
                self._older, self._newer, self._num_bytes = self._newer, {}, 0
            self._newer[key] = (value, num_bytes)
            self._num_bytes += num_bytes
