"""The text space: any Unicode string up to a length; and strings that can be encoded."""

from typing import Any

import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory

_SAMPLE_CHARS = "".join(map(chr, range(32, 127))) + "\n\t"
_MAX_SAMPLE_CHARS = 256


def to_utf8(text: str) -> str:
    r"""Returns a text with `?` for each half surrogate pair, as of a file's name that is no UTF-8.

    Python's strings may hold such halves, which UTF-8 has not.

    >>> to_utf8("a\ud83d")
    'a?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Unicode(Text):
    """All `str` values of up to `max_length` characters.

    Stock `Text` has no space character, and a full Unicode charset costs it 46 MB. This one checks
    type and length only. Samples are printable ASCII of at most 256 characters.
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        """`max_length` is allowed, too."""
        super().__init__(max_length, min_length=0, charset=_SAMPLE_CHARS, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Returns a random string; `mask` and `probability` are as in `gymnasium.spaces.Text`."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(min(self.max_length, _MAX_SAMPLE_CHARS) + 1))
        codes = self.np_random.integers(0, len(self.character_list), size=length)
        return "".join(self.character_list[code] for code in codes)

    def contains(self, x: Any) -> bool:
        """Returns whether `x` is a string of allowed length."""
        return isinstance(x, str) and len(x) <= self.max_length

    @property
    def is_np_flattenable(self) -> bool:
        """False: characters outside the sample alphabet have no index."""
        return False

    def __repr__(self) -> str:
        """Shows the length, not the alphabet."""
        return f"Unicode({self.max_length})"

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, Unicode) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]


@create_shared_memory.register(Unicode)
def _refuse_shared_memory(space: Unicode, n: int = 1, ctx: Any = None) -> Any:
    del space, n, ctx
    raise TypeError(
        "AsyncVectorEnv with shared_memory=True corrupts text; use gym.make_vec(id, num_envs=n) "
        "(threads, made for text) or AsyncVectorEnv(..., shared_memory=False)"
    )
