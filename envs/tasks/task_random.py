"""The random generator that makes a task from its id: alike in every Python version, and fast."""

from collections.abc import Sequence
from itertools import repeat
from math import ceil, log
from random import Random
from typing import TypeVar

T = TypeVar("T")


class TaskRandom(Random):
    """Draws what `random.Random` draws in CPython 3.11, in about half the time.

    How `choice`, `sample` and `randrange` use their bits is not promised between Python versions,
    but a task's id must make the same task in all of them, so it is written out here.
    """

    def below(self, end: int) -> int:
        """Returns an integer of at least 0 and below `end` (1 or more)."""
        num_bits = end.bit_length()
        value = self.getrandbits(num_bits)
        while value >= end:
            value = self.getrandbits(num_bits)
        return value

    def many_below(self, end: int, count: int) -> list[int]:
        """Returns what `count` calls of `below` return."""
        getrandbits, num_bits = self.getrandbits, end.bit_length()
        # Takes the same bits from the generator as single calls would, in the same order.
        values: list[int] = []
        while missing := count - len(values):
            drawn = map(getrandbits, repeat(num_bits, missing))
            values += [value for value in drawn if value < end]
        return values

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        """Returns one of the elements. Raises: IndexError on none."""
        size = len(seq)
        if not size:
            raise IndexError("cannot choose from an empty sequence")
        num_bits = size.bit_length()
        index = self.getrandbits(num_bits)
        while index >= size:
            index = self.getrandbits(num_bits)
        return seq[index]

    def sample(self, population: Sequence[T], k: int) -> list[T]:  # type: ignore[override]
        """Returns `k` different elements in random order. Raises: ValueError on too few."""
        size = len(population)
        if not 0 <= k <= size:
            raise ValueError(f"cannot take {k} of {size} elements")
        if size <= 21 or (k > 5 and size <= 21 + 4 ** ceil(log(k * 3, 4))):
            getrandbits, pool, chosen = self.getrandbits, list(population), []
            for end in range(size, size - k, -1):
                num_bits = end.bit_length()
                index = getrandbits(num_bits)
                while index >= end:
                    index = getrandbits(num_bits)
                chosen.append(pool[index])
                pool[index] = pool[end - 1]
            return chosen
        indices: dict[int, None] = {}
        while len(indices) < k:
            indices[self.below(size)] = None
        return [population[index] for index in indices]

    def randint(self, a: int, b: int) -> int:
        """Returns an integer of at least `a` and at most `b`."""
        return a + self.below(b + 1 - a)
