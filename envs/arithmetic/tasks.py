"""Arithmetic problems: drawn, or made again from their ids."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from agentpeft.envs.arithmetic.operations import Operation, get_operation, is_operation
from agentpeft.envs.core.errors import SettingsError, UnknownTaskError, shown
from agentpeft.envs.tasks.task import Split, Task, check_split, compute_split

MAX_DIGITS = 1000
_MAX_DRAWS = 1000
_NUM_SPARE_BYTES = 8
_TASK_ID = re.compile(r"(\w+):([0-9]{1,1000})([^0-9]+)([0-9]{1,1000}):(plain|reversed|worked)")


@dataclass(frozen=True, kw_only=True)
class ArithmeticTask(Task):
    """A problem whose `instruction` is `12+34=` and whose one right answer is `answer`.

    `num_digits` is the longer operand's. `width` is the fixed width of the operands in the
    reversed format (`21+43=` has width 2), None in the plain one. `work` is what a perfect agent
    writes before the answer (`8400+0630=` for 12*34), None where an answer stands alone.
    """

    answer: str
    num_digits: int
    width: int | None = None
    work: str | None = None

    @property
    def format(self) -> str:
        """The notation of the numbers: "plain", "reversed" or "worked"."""
        if self.width is None:
            return "plain"
        return "reversed" if self.work is None else "worked"


def to_reversed(number: int, width: int) -> str:
    """Returns a number's digits from the least significant on, padded to a width, sign last.

    >>> to_reversed(42, 4), to_reversed(-42, 4)
    ('2400', '2400-')
    """
    return f"{abs(number):0{width}d}"[::-1] + ("-" if number < 0 else "")


def make_task(
    operation: Operation, left: int, right: int, width: int | None, is_worked: bool = False
) -> ArithmeticTask:
    """Returns the task `left operation right`; with a `width` in the reversed format.

    Its id has the operands in their usual order: `addition:12+345:plain`, or padded to the width
    `addition:012+345:reversed`, which the agent sees as `210+543=` and answers with `7530`.
    """
    symbol, result = operation.symbol, operation.compute(left, right)
    num_digits = len(str(max(left, right)))
    problem = f"{left:0{width or 1}d}{symbol}{right:0{width or 1}d}"
    work = None
    if width is None:
        shown, answer, notation = problem, str(result), "plain"
    else:
        shown = f"{to_reversed(left, width)}{symbol}{to_reversed(right, width)}"
        answer_width = operation.answer_digits(width)
        answer, notation = to_reversed(result, answer_width), "reversed"
        if is_worked:
            notation = "worked"
            terms = operation.work(left, right, width) if operation.work else ()
            work = "+".join(to_reversed(term, answer_width) for term in terms)
            work += "=" if work else ""
    return ArithmeticTask(
        task_id=f"{operation.name}:{problem}:{notation}",
        instruction=f"{shown}=",
        skills=(operation.name, f"{num_digits}_digits"),
        answer=answer,
        num_digits=num_digits,
        width=width,
        work=work,
    )


@dataclass(frozen=True)
class ArithmeticGenerator:
    """A task source: each operand has a uniformly random number of digits, then random digits.

    `num_digits` are the fewest and the most digits of an operand (one digit is 0 to 9, two are 10
    to 99). `width` as in `ArithmeticTask`; with one, `is_worked` leaves room for working. A
    problem's `split` is the same in whichever order its operands are; one in four is "test".
    Raises: SettingsError on settings without problems.
    """

    operations: tuple[Operation, ...]
    num_digits: tuple[int, int]
    width: int | None = None
    split: Split | None = None
    is_worked: bool = False

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        check_split(self.split)
        low, high = self.num_digits
        if not self.operations:
            raise SettingsError("operations must name at least one operation")
        if not 1 <= low <= high <= MAX_DIGITS:
            raise SettingsError(
                f"num_digits must be 1 to {MAX_DIGITS}, got {shown(low)} to {shown(high)}"
            )
        for operation in self.operations:
            if operation.min_operand >= 10**low:
                raise SettingsError(f"{operation.name} has no operands of {low} digits")

    def draw(self, rng: np.random.Generator) -> ArithmeticTask:
        """Returns one random task. Raises: SettingsError where the split has none."""
        for _ in range(_MAX_DRAWS):
            noise = int.from_bytes(rng.bytes(self._num_bytes), "little")
            operation, left, right = self._decode(noise)
            problem = f"{min(left, right)}{operation.symbol}{max(left, right)}"
            if self.split is None or compute_split(problem) == self.split:
                return make_task(operation, left, right, self.width, self.is_worked)
        raise SettingsError(f"no problem of these settings is in split {self.split!r}")

    def generate_batch(self, rng: np.random.Generator, num_tasks: int) -> list[ArithmeticTask]:
        """Returns the tasks of `num_tasks` draws. Raises: as `draw`."""
        return [self.draw(rng) for _ in range(num_tasks)]

    def get(self, task_id: str) -> ArithmeticTask:
        """Returns the task of an id, of any registered operation and format."""
        match = _TASK_ID.fullmatch(task_id)
        if match and is_operation(match[1]):
            operation, left, right = get_operation(match[1]), int(match[2]), int(match[4])
            width = None if match[5] == "plain" else max(len(match[2]), len(match[4]))
            if min(left, right) >= operation.min_operand:
                task = make_task(operation, left, right, width, match[5] == "worked")
                if task.task_id == task_id:
                    return task
        raise UnknownTaskError(f"no arithmetic task {task_id!r:.80}; ids: addition:1+23:plain")

    @cached_property
    def _num_bytes(self) -> int:
        """Bytes of randomness for one task: spare ones keep its parts uniform within 2^-64."""
        low, high = self.num_digits
        num_tasks: int = len(self.operations) * ((high - low + 1) * 10**high) ** 2
        return -(-(num_tasks.bit_length() // 8 + 1 + _NUM_SPARE_BYTES) // 4) * 4

    def _decode(self, noise: int) -> tuple[Operation, int, int]:
        """Reads operation and operands off a random number, as digits of a mixed radix."""
        low, high = self.num_digits
        noise, index = divmod(noise, len(self.operations))
        operation = self.operations[index]
        operands = []
        for _ in range(2):
            noise, index = divmod(noise, high - low + 1)
            end: int = 10 ** (low + index)
            start = max(operation.min_operand, end // 10 if end > 10 else 0)
            noise, offset = divmod(noise, end - start)
            operands.append(start + offset)
        if operation.larger_first:
            operands.sort(reverse=True)
        return operation, operands[0], operands[1]
