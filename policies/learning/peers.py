"""What an update asks of the learners beside it (`several_learners`), and how one alone answers."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import nn

from agentpeft.policies.learning.samples import Sample

_T = TypeVar("_T")


class Peers:
    """The learners of a run, as learner `rank` of them sees them: here it is the only one."""

    rank, num_learners = 0, 1

    def choose_share(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns this learner's share of the samples."""
        return list(samples)

    def divide(
        self, samples: Sequence[Sample], compute: Callable[[Sequence[Sample]], Sequence[_T]]
    ) -> list[_T]:
        """Returns what `compute` says of each sample, each learner computing its share."""
        return list(compute(samples))

    def gather(self, value: _T) -> list[_T]:
        """Returns the learners' values, by rank."""
        return [value]

    def of_first(self, make: Callable[[], _T]) -> _T:
        """Returns what `make` returns in learner 0, the only one that calls it."""
        return make()

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sums each parameter's gradient over the learners; a missing one counts as zero."""

    def check_equal(self, parameters: Sequence[nn.Parameter]) -> None:
        """Raises: TrainingError unless all learners have the same weights, bit for bit."""
