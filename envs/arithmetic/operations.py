"""The operations that arithmetic problems are made of, and how to add one.

A new operation is one call; afterwards `operations=["modulo"]` works everywhere:

>>> register_operation(
...     Operation("modulo", "%", lambda a, b: a % b, answer_digits=lambda n: n, min_operand=1)
... )
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass

from agentpeft.envs.errors import SettingsError, did_you_mean


@dataclass(frozen=True)
class Operation:
    """An operation on two non-negative integers.

    `answer_digits` gives the digits that an answer needs at most for operands of n digits (the
    width of the fixed-width format). `min_operand` is the smallest operand. With `larger_first`
    the larger operand is written first, so that no difference is negative.
    """

    name: str
    symbol: str
    compute: Callable[[int, int], int]
    answer_digits: Callable[[int], int]
    min_operand: int = 0
    larger_first: bool = False

    def __post_init__(self) -> None:
        """Raises: SettingsError on names and symbols that would make task ids ambiguous."""
        if not self.name.isidentifier():
            raise SettingsError(f"an operation's name must be an identifier, got {self.name!r}")
        if not self.symbol or any(c.isdigit() or c.isspace() or c == ":" for c in self.symbol):
            raise SettingsError(
                f"an operation's symbol must have no digit, space or colon, got {self.symbol!r}"
            )
        if self.min_operand < 0:
            raise SettingsError(f"min_operand must be >= 0, got {self.min_operand}")


_OPERATIONS: dict[str, Operation] = {}


def register_operation(operation: Operation) -> None:
    """Makes an operation known by its name. Raises: SettingsError if the name is taken."""
    if operation.name in _OPERATIONS:
        raise SettingsError(f"operation {operation.name!r} is registered already")
    _OPERATIONS[operation.name] = operation


def get_operation(name: str) -> Operation:
    """Returns a registered operation. Raises: SettingsError on an unknown name."""
    if name not in _OPERATIONS:
        raise SettingsError(f"unknown operation {name!r}{did_you_mean(name, _OPERATIONS)}")
    return _OPERATIONS[name]


register_operation(Operation("addition", "+", operator.add, lambda n: n + 1))
register_operation(Operation("subtraction", "-", operator.sub, lambda n: n, larger_first=True))
register_operation(Operation("multiplication", "*", operator.mul, lambda n: 2 * n))
