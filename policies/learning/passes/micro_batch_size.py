"""How many tokens a micro-batch may have: fewer where memory runs out, more once it has not."""

from collections.abc import Callable
from typing import TypeVar

from agentpeft.policies.errors import is_out_of_memory

_T = TypeVar("_T")
_MIN_TOKENS = 32
CALM_UPDATES = 20
"""After so many updates in a row without a shortage of memory, micro-batches double again."""


class MicroBatchSize:
    """The tokens of a micro-batch, `max_tokens`: halved whenever memory runs out.

    A shortage may pass: after `CALM_UPDATES` updates without one it doubles, up to the setting.
    """

    def __init__(self, limit: int) -> None:
        """`limit` is `learners.max_tokens_per_micro_batch`."""
        self._limit = self.max_tokens = limit
        self._num_retries = self._num_calm_updates = 0

    def within_memory(self, compute: Callable[[], _T]) -> _T:
        """Returns the result; tries again with smaller micro-batches while memory runs out."""
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or self.max_tokens < 2 * _MIN_TOKENS:
                    raise
            self.max_tokens //= 2
            self._num_retries += 1

    def end_update(self) -> int:
        """Returns how often memory ran out in this update; grows micro-batches after calm ones."""
        taken, self._num_retries = self._num_retries, 0
        is_calm = taken == 0 and self.max_tokens < self._limit
        self._num_calm_updates = self._num_calm_updates + 1 if is_calm else 0
        if self._num_calm_updates == CALM_UPDATES:
            self._num_calm_updates = 0
            self.max_tokens = min(2 * self.max_tokens, self._limit)
        return taken

    def state(self) -> tuple[int, int]:
        """Returns the present `max_tokens`, and the number of updates since memory last ran out."""
        return self.max_tokens, self._num_calm_updates

    def load_state(self, max_tokens: int, num_calm_updates: int = 0) -> None:
        """Continues from `state`, within this run's setting."""
        self.max_tokens = min(max_tokens, self._limit)
        self._num_calm_updates = num_calm_updates
