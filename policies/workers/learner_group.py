"""The learners: what one does in its process, and the group that the driver talks to."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, TypeVarTuple

import torch

from agentpeft.policies.delivery.probe import Probe
from agentpeft.policies.delivery.publish import Shipment, pack
from agentpeft.policies.errors import PayloadLostError
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.peers import Peers, open_store
from agentpeft.policies.learning.token_records import to_token_record
from agentpeft.policies.messages import AdapterAck, AdapterVersion, EpisodeGroup, Ref, TokenRecord
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import Policy, attach_lora
from agentpeft.policies.rollout.chat import make_chat
from agentpeft.policies.rollout.oracle import imitated_groups, warm_start_batches
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers import learner_files
from agentpeft.policies.workers.actors import Actor, ActorSpec, missing, resolve

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LearnerActor(Actor):
    """One learner. With several, each does what all are asked for, and the first answers."""

    learner: Learner
    _received: Sequence[EpisodeGroup] = ()
    _unsharded: tuple[Settings, Policy] | None = None
    """What a learner is made of once all can shard the base."""

    def make(self, settings: Settings) -> None:
        """Loads the model and attaches a new adapter, or the one to start from.

        Over a base to be sharded there is no learner yet: `join` makes it.
        """
        own, loaded = settings.learners, settings
        if not settings.lora.use_lora:  # what is trained is float32, also where it goes on from
            loaded = settings.with_model(dtype="float32")
        base = load_base(
            loaded,
            own.num_gpus_per_learner,
            stays_on_cpu=own.shard_base,
            is_frozen=settings.lora.use_lora and not own.shard_base,
        )
        policy = attach_lora(
            base,
            settings.lora,
            seed=settings.seed,
            gradient_checkpointing=own.gradient_checkpointing,
        )
        if own.shard_base:
            self._unsharded = settings, policy
        else:
            self.learner = Learner(settings, policy)

    def join(self, place: tuple[str, int], rank: int) -> None:
        """Meets the other learners at a store's host and port."""
        settings = self.learner.settings if self._unsharded is None else self._unsharded[0]
        own = settings.learners
        peers = Peers.join(place, rank, own.num_learners, own.num_gpus_per_learner > 0)
        if self._unsharded is None:
            self.learner.peers = peers
        else:
            self.learner = Learner(*self._unsharded, peers)
            self._unsharded = None

    def receive(self, groups: Sequence[Ref]) -> None:
        """Fetches the groups that the next update learns from."""
        self._received = resolve(groups)

    def update(self) -> dict[str, float]:
        """Learns from the groups received and returns the metrics."""
        groups, self._received = self._received, ()
        metrics = self.learner.update(groups)
        self._give_memory_back()
        return metrics

    def imitate(self, first: int, num_groups: int) -> tuple[dict[str, float], tuple[int, ...]]:
        """Learns from the oracle's episodes, or chats, from position `first` on.

        Returns the update's metrics, and the hashes of the tasks; chats have none.
        """
        settings, peers = self.learner.settings, self.learner.peers
        chat = make_chat(self.learner.policy.base, settings)
        chats = settings.training.chats
        played = imitated_groups(settings.environment, chats, chat, settings.seed, first)
        groups = peers.of_first(lambda: list(islice(played, num_groups)))
        hashes = tuple(group.task_hash for group in groups if group.task_hash is not None)
        metrics = self.learner.update(groups)
        self._give_memory_back()
        return metrics, hashes

    def warm_start(self) -> None:
        """Takes all steps of the adapter's warm start."""
        settings, peers = self.learner.settings, self.learner.peers
        batches = warm_start_batches(settings, make_chat(self.learner.policy.base, settings))
        for _ in range(settings.warm_start.num_steps):
            self.learner.sft_update(peers.of_first(lambda: next(batches)))

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

    def attend_pack(self) -> None:
        """Runs what the first learner's `pack` runs, for which a sharded base needs all of them."""
        pack(self.learner)
        self._give_memory_back()

    def read_token_records(self) -> list[TokenRecord]:
        """Returns the few episodes that pulled hardest at the last update, token by token.

        All learners must call it.
        """
        tokenizer = self.learner.policy.base.tokenizer
        extremes = self.learner.score_extremes()
        self._give_memory_back()
        return [to_token_record(group, sample, tokenizer) for group, sample in extremes]

    def _give_memory_back(self) -> None:
        """Leaves a GPU to engines that sleep while this one learns."""
        if self.learner.settings.env_runners.sleep_while_learning:
            torch.cuda.empty_cache()

    def to_files(self) -> dict[str, bytes]:
        """Returns a checkpoint's files: those of the adapter, and the learner's state."""
        return learner_files.write_all(self.learner, self.places)

    def adapter_to_files(self) -> dict[str, bytes]:
        """Returns the adapter's files in PEFT's format; the model's if all weights are trained."""
        return learner_files.write_adapter(self.learner.policy, self.places)

    def restore(self, files: Mapping[str, bytes]) -> None:
        """Goes on from what `to_files` returned. Raises: CheckpointError, SettingsError."""
        learner_files.restore(self.learner, files, self.places)


class LearnerGroup:
    """The learners. They hold the same weights, so what one can answer the first is asked."""

    meanwhile: Callable[[Sequence[Ref]], None] | None = None
    """How sampling overlaps learning: while this group waits for a result, it calls this again and
    again. `EnvRunnerGroup.play` hands groups out to runners, and returns once the result is there.
    """

    def __init__(self, settings: Settings, kind: type[LearnerActor] = LearnerActor) -> None:
        """Raises: PlacementError, and what loading the model raises."""
        own = settings.learners
        self._is_sharded = own.shard_base
        spec = ActorSpec(
            name="the learner" if own.num_learners == 1 else "the learners",
            kind=kind,
            num_actors=own.num_learners,
            num_cpus=own.num_cpus_per_learner,
            num_gpus=own.num_gpus_per_learner,
            num_threads=own.num_threads,
        )
        self._actors = kind.start_all(spec, settings)
        if own.num_learners > 1:
            try:
                self._join()
            except BaseException:
                self.close()
                raise

    def _join(self) -> None:
        from agentpeft.policies.workers.ray_actors import node_address

        self._store = open_store(node_address())  # kept: nccl asks it at the first update
        place, ranks = (self._store.host, self._store.port), range(self._actors.num_actors)
        joined = [self._actors.call(rank, LearnerActor.join, place, rank) for rank in ranks]
        self._actors.fetch(joined)

    def update(self, groups: Sequence[Ref]) -> dict[str, float]:
        """Learns from groups, which reach the learners without passing the driver.

        All learners have them before one begins. Raises: PayloadLostError if one went with the
        node that held it; then nothing was learnt.
        """
        self.call_all(LearnerActor.receive, groups)
        return self.call_all(LearnerActor.update)

    def find_lost(self, groups: Sequence[Ref]) -> list[Ref]:
        """Returns the groups that can no longer reach the learners."""
        lost = []
        for group in groups:
            try:
                self.call_all(LearnerActor.receive, [group])
            except PayloadLostError:
                lost.append(group)
        return lost

    def adapter(self) -> Shipment:
        """Returns the present adapter, to be delivered."""
        adapter, receipt, probe = self._actors.call(0, LearnerActor.pack, num_returns=3)
        others = range(1, self._actors.num_actors) if self._is_sharded else ()
        beside = [self._actors.call(rank, LearnerActor.attend_pack) for rank in others]
        receipt, probe = self._fetch([receipt, probe, *beside])[:2]
        return Shipment(adapter, receipt, probe)

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
        while self.meanwhile is not None and (waiting := missing(self._actors, refs)):
            self.meanwhile(waiting)
        return self._actors.fetch(refs)

    def roll_back(self, version: int) -> bool:
        """Has the learners go back to a version, whatever they do; returns whether they could.

        One alone stops at once. Of several none may, as the others would wait for its gradients.
        """
        self.meanwhile = None
        if self._actors.num_actors == 1:
            self._actors.fetch([self._actors.call(0, LearnerActor.abandon, is_beside=True)])
        return self.call_all(LearnerActor.roll_back, version)

    def close(self) -> None:
        """Ends the learners; idempotent."""
        self._actors.close()
