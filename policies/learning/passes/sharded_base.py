"""A frozen base of which each learner holds a share: FSDP2 over its layers, and passes in step.

Of each layer a learner holds one part in N of every weight. While it runs the layer, forwards or
backwards, the learners gather it whole, and drop it again. Adapters and critic are whole in each
learner, as they are without sharding; so are the embeddings, the last norm and the output layer.

Since all must gather a layer for one of them to run it, they run equally many passes, in one order:

1. They tell each other how many micro-batches each has. Who has fewer, or none, rehearses in place
   of the missing ones: a pass over one token, backwards from a loss of 0.
2. If one of them runs out of memory within a pass, the others wait for its parts of the layers that
   were still to come. It gathers and drops these, computing nothing, and only rehearses from then
   on. Which layers were still to come, it knows from the first rehearsal of such a pass.
3. After the last pass they tell each other whether one ran out of memory. Then it is an error in
   all of them, so that all begin anew with micro-batches of half the size.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather  # no other is public
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from agentpeft.envs import Outcome, SettingsError
from agentpeft.policies.errors import TrainingError, is_out_of_memory
from agentpeft.policies.learning.passes.micro_batches import MicroBatch
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.learning.several_learners import SeveralLearners
from agentpeft.policies.messages import Trajectory
from agentpeft.policies.models.lora.attach_lora import Policy

if TYPE_CHECKING:  # they import this module where a base is sharded
    from agentpeft.policies.learning.options.teacher import FrozenPolicy
    from agentpeft.policies.learning.passes.model_runner import ModelRunner, Pass

_REHEARSED = Sample(
    0,
    0,
    Trajectory(
        prompt_ids=np.zeros(1, np.int64),
        token_ids=np.zeros(1, np.int64),
        loss_mask=np.ones(1, np.bool_),
        sampling_logprobs=np.zeros(1, np.float32),
        turn_ends=(1,),
        turn_rewards=(0.0,),
        outcome=Outcome.FAILURE,
    ),
)
"""What a rehearsal runs: nobody's episode."""


class ShardedBase:
    """The base of a policy, sharded over the learners, and what its passes must be run by.

    At no time is a device given all of it. The base is loaded on the CPU, where its weights are
    pages of the model's files (unless they are converted to another type), which the processes of
    a machine have in common and which the system may drop. `fully_shard` takes a layer after the
    other to the device, copies this learner's part of it, and forgets the whole: the peak is the
    parts and one layer. In a pass it is the parts and about three layers: the present one, the
    next, and what is being gathered.
    """

    def __init__(self, policy: "Policy | FrozenPolicy", peers: Peers, device: torch.device) -> None:
        """Shards the base in place, and takes all the rest of the policy to the device.

        Raises: SettingsError where the model does not say what its layers are.
        """
        model = policy.base.model
        newest = (FSDPModule, "reset_iter_state"), (dist, "all_gather_single")
        if any(getattr(owner, name, None) is None for owner, name in newest):
            raise SettingsError(
                f"learners.shard_base needs torch 2.13 or newer, got {torch.__version__}: set it "
                "to false"
            )
        if not isinstance(peers, SeveralLearners):
            raise SettingsError(
                "learners.shard_base deals a base out over several learners: set "
                "learners.num_learners to 2 or more"
            )
        layers = list(find_layers(model))
        root = model.base_model
        if root is model or not layers:
            raise SettingsError(
                f"learners.shard_base: the model {type(model).__name__} does not name its layers "
                "(_no_split_modules), or its body (base_model_prefix): set it to false"
            )
        self._peers = peers
        self._gathered: list[int] = []
        """The layers that were gathered in the present pass, by number."""
        self._orders: dict[Hashable, list[int]] = {}
        """The same of a whole pass, by its kind: those of a kind gather alike."""
        mesh = init_device_mesh(device.type, (peers.num_learners,), mesh_dim_names=("fsdp",))
        self._layers: list[FSDPModule] = []
        for number, layer in enumerate(layers):
            adapters = {p for name, p in layer.named_parameters() if ".lora_" in name}
            sharded = fully_shard(
                layer, mesh=mesh, reshard_after_forward=True, ignored_params=adapters
            )
            sharded.set_custom_all_gather(_NotedGather(number, self._gathered, peers.together))
            self._layers.append(sharded)
        for tensor in chain(policy.model.parameters(), policy.model.buffers()):
            if not isinstance(tensor, DTensor):
                tensor.data = tensor.data.to(device)
        whole = {p for p in root.parameters() if not isinstance(p, DTensor)}
        self._root = fully_shard(root, mesh=mesh, ignored_params=whole)
        with torch.no_grad():  # only a first pass makes the rest of FSDP's state
            root(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False)

    def run(
        self,
        runner: "ModelRunner",
        forward_pass: "Pass",
        batches: Sequence[MicroBatch],
        run: Callable[[MicroBatch], None],
    ) -> None:
        """Runs a pass for each micro-batch, and rehearses while other learners have more of them.

        Raises: MemoryError if a learner ran out of memory, in all learners; then all micro-batches
        were in vain. TrainingError if it has too little for a single layer: the others wait for it
        in vain.
        """
        kind = forward_pass, torch.is_grad_enabled()
        rehearse = partial(_rehearse, runner, forward_pass)
        # Of each forward pass that had no backward pass, as a probe's, FSDP still expects one
        self._root.reset_iter_state()
        if kind not in self._orders:
            self._gathered.clear()
            with _one_layer_must_fit():
                rehearse()
            self._orders[kind] = list(self._gathered)
        shortage: str | None = None
        for number in range(max(self._peers.gather(len(batches)))):
            self._gathered.clear()
            is_cut_short = False
            try:
                if shortage is None and number < len(batches):
                    run(batches[number])
                else:
                    rehearse()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                shortage, is_cut_short = str(error), True
            if is_cut_short:  # here, where the error no longer holds what the pass had in memory
                self._finish(self._orders[kind])
        shortages = [text for text in self._peers.gather(shortage) if text is not None]
        if shortages:
            raise MemoryError(shortages[0])

    def _finish(self, order: Sequence[int]) -> None:
        """Takes part in gathering the layers that a broken pass has not come to."""
        self._root.reset_iter_state()
        with _one_layer_must_fit():
            for number in order[len(self._gathered) :]:
                self._layers[number].unshard()
                self._layers[number].reshard()


def _rehearse(runner: "ModelRunner", forward_pass: "Pass") -> None:
    """Runs all that a micro-batch runs, over one token; the gradients that it adds are 0."""
    (batch,) = runner.make_micro_batches([_REHEARSED])
    logprobs, _, values = runner.compute(batch, forward_pass)
    if torch.is_grad_enabled():
        computed = [numbers for numbers in (logprobs, values) if numbers is not None]
        loss = torch.cat(computed).sum() * 0.0
        loss.backward()  # type: ignore[no-untyped-call]


@contextmanager
def _one_layer_must_fit() -> Iterator[None]:
    """Within it a lack of memory is no reason to try again with smaller micro-batches."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            "a learner has too little memory for one layer of the sharded base and one token: take "
            "more of them (learners.num_learners), or a smaller lora.rank"
        ) from None


@dataclass(frozen=True)
class _NotedGather(AllGather):
    """Gathers a layer's parts, as FSDP does by itself, and notes the layer's number."""

    number: int
    gathered: list[int]
    together: Callable[[], AbstractContextManager[None]]

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        self.gathered.append(self.number)
        with self.together():
            work: dist.Work | None = dist.all_gather_single(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
        return work


def find_layers(model: PreTrainedModel) -> Iterator[nn.Module]:
    """Yields the modules that transformers keeps on one device, none of which is in another."""
    names = set(model._no_split_modules or ())

    def find(module: nn.Module) -> Iterator[nn.Module]:
        if type(module).__name__ in names:
            yield module
            return
        for child in module.children():
            yield from find(child)

    return find(model.base_model)
