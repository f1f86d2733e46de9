"""Held-out parts of endless generators: for training and for testing."""

from typing import Literal, TypeAlias, get_args
from zlib import crc32

from agentpeft.envs.core.errors import SettingsError, shown

Split: TypeAlias = Literal["train", "test"]
_TEST_PERCENT = 25


def compute_split(text: str) -> Split:
    """Returns the split of a text, by its hash: about one in four is in "test".

    >>> compute_split("1+2"), compute_split("3+4")
    ('train', 'test')
    """
    return "test" if crc32(text.encode()) % 100 < _TEST_PERCENT else "train"


def check_split(split: str | None) -> None:
    """Raises: SettingsError if it is neither "train", "test" nor None."""
    if split is not None and split not in get_args(Split):
        raise SettingsError(f"split must be 'train', 'test' or None, got {shown(split)}")
