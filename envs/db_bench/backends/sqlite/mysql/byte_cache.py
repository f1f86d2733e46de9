"""A cache of bounded size in bytes, for results whose keys an agent can choose.

A number of entries bounds nothing where an agent makes each entry large.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class ByteCache(Generic[KeyT, ValueT]):
    """Keeps about `max_bytes` of results; when they are more, all of them go. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        """Holds nothing yet."""
        self._max_bytes = max_bytes
        self._values: dict[KeyT, ValueT] = {}
        self._num_bytes = 0

    def find(self, key: KeyT) -> ValueT | None:
        """Returns what is kept for a key, None where nothing is."""
        return self._values.get(key)

    def keep(self, key: KeyT, value: ValueT, num_bytes: int) -> None:
        """Keeps a result that takes about `num_bytes`, its key included."""
        if self._num_bytes + num_bytes > self._max_bytes:
            self._values, self._num_bytes = {}, 0
        if num_bytes <= self._max_bytes // 8:
            self._values[key] = value
            self._num_bytes += num_bytes
