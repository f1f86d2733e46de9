"""Answers in which the name of the format is not heeded, as other environments' lapses."""

from agentpeft.envs.arithmetic.operations import get_operation
from agentpeft.envs.arithmetic.tasks import ArithmeticTask, to_reversed


def misread(task: ArithmeticTask) -> str:
    """Returns the answer of an agent that reads plain numbers as reversed, or reversed as plain.

    Where the operation has none for such operands, it is the right answer.

    >>> from agentpeft.envs.arithmetic.tasks import make_task
    >>> misread(make_task(get_operation("addition"), 12, 34, width=None))
    '460'
    >>> misread(make_task(get_operation("addition"), 12, 34, width=2))
    '64'
    """
    operation = get_operation(task.skills[0])
    shown = task.instruction.rstrip("=").split(operation.symbol)
    is_plain = task.width is None
    left, right = (int(digits[::-1] if is_plain else digits) for digits in shown)
    if min(left, right) < operation.min_operand:
        return task.answer
    result = operation.compute(left, right)
    width = operation.answer_digits(max(map(len, shown)))
    return to_reversed(result, width) if is_plain else str(result)
