"""The learners: what one does in its process, and the group that the driver talks to."""

import io
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, TypeVarTuple

import torch

from agentpeft.policies.delivery.deliver import Shipment, pack
from agentpeft.policies.delivery.probe import Probe
from agentpeft.policies.errors import CheckpointError, PayloadLostError
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import to_token_record
from agentpeft.policies.messages import AdapterAck, AdapterVersion, EpisodeGroup, Ref, TokenRecord
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actor, Actors, ActorSpec, resolve

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ADAPTER, STATE = "adapter", "learner.pt"
"""In a checkpoint: the folder of the adapter, and the file of the rest of the learner's state."""
_ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Micro-batches are of ever new sizes: without it the memory of one does not serve the next."""
_ALLOCATOR_NAMES = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
Wait: TypeAlias = Callable[[Actors, Sequence[Ref]], None]


class LearnerActor(Actor):
    """One learner. With several, each does what all are asked for, and the first answers."""

    learner: Learner
    received: Sequence[EpisodeGroup] = ()
    lessons: Generator[list[EpisodeGroup], None, None] | None = None
    """The warm start's coming batches, once it has begun."""

    def make(self, settings: Settings) -> None:
        """Loads the model, attaches its adapter, and meets the other learners."""
        learners, loaded, peers = settings.learners, settings, Peers()
        use_lora, shard_base = settings.lora.use_lora, learners.shard_base
        if not use_lora:  # what is trained is float32, also where it goes on from
            loaded = settings.with_model(dtype="float32")
        num_gpus, is_frozen = learners.num_gpus_per_learner, use_lora and not shard_base
        if num_gpus > 0 and not _ALLOCATOR_NAMES & os.environ.keys():
            # In one process, by no variable: vLLM's own process would inherit it, and cannot sleep
            torch._C._accelerator_setAllocatorSettings(_ALLOCATOR["PYTORCH_ALLOC_CONF"])
        base = load_base(loaded, num_gpus, stays_on_cpu=shard_base, is_frozen=is_frozen)
        policy = attach_lora(
            base,
            settings.lora,
            seed=settings.seed,
            gradient_checkpointing=learners.gradient_checkpointing,
        )
        if self.store is not None:  # not before: transformers loads otherwise in a process group
            from agentpeft.policies.learning.several_learners import SeveralLearners

            peers = SeveralLearners(self.store, self.rank, learners.num_learners, num_gpus > 0)
        self.learner = Learner(settings, policy, peers)

    def receive(self, groups: Sequence[Ref]) -> None:
        """Fetches the groups that the next update learns from."""
        self.received = resolve(groups)

    def call_with(self, function: Callable[[Any, *Ts], T], *args: *Ts) -> T:
        """Returns `function(self, *args)`: what only some runs ask of a learner."""
        return function(self, *args)

    def update(self) -> dict[str, float]:
        """Learns from the groups received and returns the metrics."""
        groups, self.received = self.received, ()
        metrics = self.learner.update(groups)
        self._give_memory_back()
        return metrics

    def abandon(self) -> None:
        """Has the update that is under way end soon; call it beside."""
        self.learner.abandon()

    def roll_back(self, version: int) -> bool:
        """Goes back to the version of the last whole iteration; see `Learner.roll_back`."""
        return self.learner.roll_back(version)

    def pack(self) -> tuple[AdapterVersion, AdapterAck, Probe | None]:
        """Returns the present adapter, and what a runner must answer to it."""
        packed = pack(self.learner)
        self._give_memory_back()
        return packed

    def read_token_records(self) -> list[TokenRecord]:
        """Returns the few episodes that pulled hardest at the last update, token by token.

        All learners must call it.
        """
        tokenizer = self.learner.policy.base.tokenizer
        extremes = self.learner.score_extremes()
        self._give_memory_back()
        return [to_token_record(*extreme, tokenizer) for extreme in extremes]

    def _give_memory_back(self) -> None:
        """Leaves a GPU to engines that sleep while this one learns."""
        if self.learner.settings.env_runners.sleep_while_learning:
            torch.cuda.empty_cache()

    def to_files(self) -> dict[str, bytes]:
        """Returns a checkpoint's files: those of the adapter, and the learner's state."""
        buffer = io.BytesIO()
        torch.save(self.learner.state_dict(), buffer)
        adapter = {f"{ADAPTER}/{n}": content for n, content in self.adapter_to_files().items()}
        return {**adapter, STATE: buffer.getvalue()}

    def adapter_to_files(self) -> Mapping[str, bytes]:
        """Returns the adapter's files in PEFT's format; the model's if all weights are trained."""
        with TemporaryDirectory() as folder:
            try:
                self.learner.policy.save(folder)
            except CheckpointError as error:  # what has no room is the folder of temporary files
                raise CheckpointError(str(error).replace(folder, gettempdir())) from error
            paths = [path for path in Path(folder).rglob("*") if path.is_file()]
            files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        if not self.places:  # all files are where the driver has them
            return files
        from agentpeft.policies.delivery.adapter_files import rename_base

        return rename_base(files, {place: path for path, place in self.places.items()})


class LearnerGroup:
    """The learners. They hold the same weights, so what one can answer the first is asked."""

    wait: Wait | None = None
    """What is called before a result is fetched."""

    def __init__(self, settings: Settings, kind: type[LearnerActor] = LearnerActor) -> None:
        """Raises: PlacementError, SettingsError."""
        own = settings.learners
        self._is_sharded = own.shard_base
        self._store: TCPStore | None = None  # nccl asks it at the first update
        if own.num_learners > 1:
            from agentpeft.policies.learning.several_learners import open_store
            from agentpeft.policies.workers.ray_actors import find_node_address

            self._store = open_store(find_node_address())
        spec = ActorSpec(
            name="the learner" if own.num_learners == 1 else "the learners",
            kind=kind,
            num_actors=own.num_learners,
            num_cpus=settings.num_cpus_per_process,
            num_gpus=own.num_gpus_per_learner,
            num_threads=settings.threads_per_learner,
            store=None if self._store is None else (self._store.host, self._store.port),
            variables={} if _ALLOCATOR_NAMES & os.environ.keys() else _ALLOCATOR,
        )
        self._actors = kind.start_all(spec, settings)

    def receive(self, groups: Sequence[Ref]) -> Sequence[Ref]:
        """Brings groups to the learners, without passing the driver, for the next update.

        Returns those that went with the node that held them; the others must be received again.
        """
        try:
            self.call_all(LearnerActor.receive, groups)
        except PayloadLostError:
            if len(groups) == 1:
                return groups
            lost = [group for one in groups for group in self.receive([one])]
            if not lost:
                raise
            return lost
        return []

    def update(self) -> dict[str, float]:
        """Learns from the groups that were received, which all learners have by now."""
        start_s = time.perf_counter()
        metrics = self.call_all(LearnerActor.update)
        return {**metrics, "time/learn_s": time.perf_counter() - start_s}

    def pack_adapter(self) -> Shipment:
        """Returns the present adapter, to be delivered."""
        ranks = range(self._actors.num_actors if self._is_sharded else 1)  # a shard needs all
        packed = [self._actors.call(rank, LearnerActor.pack, num_returns=3) for rank in ranks]
        receipt, probe, *_ = self._fetch([ref for refs in packed for ref in refs[1:]])
        return Shipment(packed[0][0], receipt, probe)

    def call(self, method: Callable[[Any, *Ts], T], *args: *Ts) -> T:
        """Calls a method of the first learner, `call(LearnerActor.to_files)`."""
        result: T = self._fetch([self._actors.call(0, method, *args)])[0]
        return result

    def call_all(self, method: Callable[[Any, *Ts], T], *args: *Ts) -> T:
        """Calls a method of all learners and returns the first one's result."""
        ranks = range(self._actors.num_actors)
        result: T = self._fetch([self._actors.call(r, method, *args) for r in ranks])[0]
        return result

    def _fetch(self, refs: Sequence[Ref]) -> list[Any]:
        if self.wait is not None:
            self.wait(self._actors, refs)
        return self._actors.fetch(refs)

    def roll_back(self, version: int) -> bool:
        """Has the learners go back to a version, whatever they do; returns whether they could.

        One alone stops at once. Of several none may, as the others would wait for its gradients.
        """
        if self._actors.num_actors == 1:
            self._actors.fetch([self._actors.call(0, LearnerActor.abandon, is_beside=True)])
        return self.call_all(LearnerActor.roll_back, version)

    def close(self) -> None:
        """Ends the learners; idempotent."""
        self._actors.close()
