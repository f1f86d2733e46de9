"""The operations of arithmetic problems, and how to add one.

A new operation is one call; afterwards `operations=["distance"]` works everywhere:

>>> register_operation(
...     Operation("distance", "~", lambda a, b: abs(a - b), answer_digits=lambda n: n)
... )
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agentpeft.envs.core.errors import SettingsError, check_choice


@dataclass(frozen=True)
class Operation:
    """An operation on two non-negative integers.

    `answer_digits` gives the digits that an answer needs at most for operands of n digits (the
    width of the fixed-width format). `min_operand` is the smallest operand. With `larger_first`
    the larger operand is written first, so that no difference is negative. `work` gives, for two
    operands and their number of digits, numbers whose sum is the result: the working of the format
    "worked"; None is none.
    """

    name: str
    symbol: str
    compute: Callable[[int, int], int]
    answer_digits: Callable[[int], int]
    min_operand: int = 0
    larger_first: bool = False
    work: Callable[[int, int, int], Sequence[int]] | None = None

    def __post_init__(self) -> None:
        """Raises: SettingsError on names and symbols that would make task ids ambiguous."""
        if not self.name.isidentifier() or not re.fullmatch(r"[^\d\s:]+", self.symbol):
            expected = "an identifier and its symbol has no digit, space or colon"
            got = f"{self.name!r} and {self.symbol!r}"
            raise SettingsError(f"an operation's name is {expected}, got {got}")

    def __reduce__(self) -> tuple[Any, ...]:
        """A registered operation is pickled by its name: its functions may be anything."""
        if _OPERATIONS.get(self.name) is self:
            return get_operation, (self.name,)
        return cast(tuple[Any, ...], super().__reduce__())


_OPERATIONS: dict[str, Operation] = {}


def register_operation(operation: Operation) -> None:
    """Registers an operation by its name. Raises: SettingsError if the name is taken."""
    if operation.name in _OPERATIONS:
        raise SettingsError(f"operation {operation.name!r} is registered already")
    _OPERATIONS[operation.name] = operation


def is_operation(name: str) -> bool:
    """Returns whether an operation of that name is registered."""
    return name in _OPERATIONS


def get_operation(name: str) -> Operation:
    """Returns a registered operation. Raises: SettingsError on an unknown name."""
    check_choice("operation", name, _OPERATIONS)
    return _OPERATIONS[name]


def partial_products(left: int, right: int, num_digits: int) -> list[int]:
    """Returns the products of `left` with each digit of `right`, units first.

    >>> partial_products(12, 34, 2)
    [48, 360]
    """
    return [left * (right // 10**place % 10) * 10**place for place in range(num_digits)]


register_operation(Operation("addition", "+", operator.add, lambda n: n + 1))
register_operation(Operation("subtraction", "-", operator.sub, lambda n: n, larger_first=True))
register_operation(
    Operation("multiplication", "*", operator.mul, lambda n: 2 * n, work=partial_products)
)
register_operation(
    Operation("modulo", "%", operator.mod, lambda n: n, min_operand=1, larger_first=True)
)
