"""Several learners that take one step together: shares of the samples, sums of the gradients.

Every learner gets all groups and computes the same advantages, weights and minibatches, but runs
only its share of a minibatch forwards and backwards. Then, once for each optimizer step, gradients
and totals are summed over the learners, and all take the same step from the same weights.

Why not DistributedDataParallel: it expects equally many backward passes in every learner, each
after one forward pass. Here a share may be empty, each learner cuts its share to fit its memory,
and a shared prompt runs apart from its continuations. What it would hide, the sum of a LoRA's
gradients, takes 2 ms of processor time in an update of 5 s (`benchmarks/several_learners.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from agentpeft.policies.errors import TrainingError, WorkerLostError
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import Sample

_TIMEOUT = timedelta(minutes=30)
"""For learners that hang, start late or cannot be reached; a dead one is noticed at once."""
_T = TypeVar("_T")


def open_store(host: str) -> TCPStore:
    """Returns the store where learners meet, on a free port of this machine (address `host`)."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)


def cut_into_shares(samples: Sequence[Sample], num_shares: int) -> list[list[int]]:
    """Returns shares of about as many tokens, as indices into `samples`; a group stays whole.

    So each prompt runs once. The largest group goes first, each to the share with the fewest
    tokens; a share may stay empty. Groups of 5, 4 and 2 tokens in two shares: [5], [4, 2].
    """
    groups: dict[int, list[int]] = {}
    for number, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(number)

    def num_tokens(group: Sequence[int]) -> int:
        answers = sum(len(samples[number].trajectory.token_ids) for number in group)
        return answers + len(samples[group[0]].trajectory.prompt_ids)

    shares: list[list[int]] = [[] for _ in range(num_shares)]
    share_tokens = [0] * num_shares
    for group in sorted(groups.values(), key=num_tokens, reverse=True):
        least = share_tokens.index(min(share_tokens))
        shares[least] += group
        share_tokens[least] += num_tokens(group)
    return shares


class SeveralLearners(Peers):
    """The learners of a run, as learner `rank` of them sees them.

    Every method but `choose_share` waits for all learners, so all must call the same methods in the
    same order. These methods raise WorkerLostError if a learner is gone.
    """

    def __init__(
        self, address: tuple[str, int], rank: int, num_learners: int, is_gpu: bool
    ) -> None:
        """Meets the others at the store whose host and port are `address`."""
        self.rank, self.num_learners = rank, num_learners
        with self.together():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if is_gpu else "gloo",
                store=TCPStore(*address, is_master=False, timeout=_TIMEOUT),
                rank=rank,
                world_size=num_learners,
                timeout=_TIMEOUT,
            )

    def choose_share(self, samples: Sequence[Sample]) -> list[Sample]:
        """See `Peers.choose_share`."""
        return [samples[i] for i in cut_into_shares(samples, self.num_learners)[self.rank]]

    def divide(
        self, samples: Sequence[Sample], compute: Callable[[Sequence[Sample]], Sequence[_T]]
    ) -> list[_T]:
        """See `Peers.divide`."""
        results: dict[int, _T] = {}
        shares = cut_into_shares(samples, self.num_learners)
        computed = self.gather(compute([samples[number] for number in shares[self.rank]]))
        for numbers, share in zip(shares, computed, strict=True):
            results |= dict(zip(numbers, share, strict=True))
        return [results[number] for number in range(len(samples))]

    def gather(self, value: _T) -> list[_T]:
        """See `Peers.gather`."""
        values = [value] * self.num_learners
        with self.together():
            dist.all_gather_object(values, value)
        return values

    def of_first(self, make: Callable[[], _T]) -> _T:
        """See `Peers.of_first`."""
        made = [make() if self.rank == 0 else None]
        with self.together():
            dist.broadcast_object_list(made, 0)
        return made[0]  # type: ignore[return-value]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """See `Peers.sum_gradients`."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([grad.flatten() for grad in grads])
        with self.together():
            dist.all_reduce(flat)
        parts = flat.split([grad.numel() for grad in grads])  # type: ignore[no-untyped-call]
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def check_equal(self, parameters: Sequence[nn.Parameter]) -> None:
        """See `Peers.check_equal`."""
        bits = [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in parameters]
        first, *others = self.gather(torch.stack(bits).tolist())
        for rank, sums in enumerate(others, 1):
            if sums != first:
                raise TrainingError(
                    f"learner {rank} has other weights than learner 0 after the same update: run "
                    "all of them on machines of one kind, or set learners.num_learners = 1"
                )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within it an error of a call that waits for all learners is a WorkerLostError."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise WorkerLostError(
                f"learner {self.rank} has lost the other learners: one of them is gone, hangs or "
                f"cannot be reached ({reason})"
            ) from None
