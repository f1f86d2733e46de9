"""How long the parts of an iteration take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class IterationClock:
    """Seconds of an iteration by part; the rest is orchestration."""

    def __init__(self) -> None:
        self._start_s = time.perf_counter()
        self._parts_s: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the seconds spent within it to a part's."""
        start_s = time.perf_counter()
        yield
        self._parts_s[name] = self._parts_s.get(name, 0.0) + time.perf_counter() - start_s

    def metrics(self) -> dict[str, float]:
        """Returns each part's seconds, and those in all until now."""
        total_s = time.perf_counter() - self._start_s
        parts = {**self._parts_s, "orchestration": total_s - sum(self._parts_s.values())}
        return {f"time/{name}_s": s for name, s in {**parts, "total": total_s}.items()}
