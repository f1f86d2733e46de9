"""One delivery of an adapter: from the learner that trained it to the runners that play with it.

`deliver` takes three steps, each in a process of its own where there are actors:

1. `pack`, in the learner's: the adapter, a receipt of it, and what a probe of it must give.
2. `serve`, in each runner's: serves what arrived, checks it, and lets the engine answer the probe.
3. `check`, in the driver's: compares each answer with receipt and probe.

An answer that equals the receipt proves what arrived: whoever loads the weights (the runner, or
vLLM's process, from what it has read) computes their SHA-256 anew, once (`delivery.version`). The
probe, every `probe_interval` versions, proves what is served: learner and engine must give fixed
token sequences the same log-probabilities but for rounding (`probe.find_problem` has the limits),
the engine must be nearer to the adapter than to the base (once B is not 0), and its weights must
have kept the learner's change after rounding. Between two probes the receipt alone is compared. The
driver holds only a reference to the weights, and compares the answers. `EnvRunnerGroup` replaces a
runner whose answer is wrong.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from agentpeft.policies.delivery.probe import (
    Probe,
    Proof,
    compute_delivery_metrics,
    find_problem,
    make_probe,
)
from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.errors import DeliveryError, EngineError
from agentpeft.policies.messages import AdapterAck, AdapterVersion, Ids, Ref

if TYPE_CHECKING:  # they import this module
    from agentpeft.policies.learning.learner import Learner
    from agentpeft.policies.rollout.env_runner import EnvRunner
    from agentpeft.policies.workers.learner_group import LearnerGroup
    from agentpeft.policies.workers.runner_group import EnvRunnerGroup

_HIGHER_IS_BETTER = ("canary", "engine_effect", "served_effect")
"""Metrics of which higher is better; of all others of the probe lower is."""
Answer: TypeAlias = tuple[AdapterAck, Proof | None]
"""What a runner answers to a delivery; the proof is None if no probe was asked of it."""


@dataclass(frozen=True)
class Shipment:
    """An adapter on its way, and the answer that is expected; `probe` None: the receipt alone."""

    adapter: Ref
    receipt: AdapterAck
    probe: Probe | None

    @property
    def sequences(self) -> Sequence[Ids] | None:
        """What the engine is to score, if anything."""
        return None if self.probe is None else self.probe.sequences


def deliver(learners: "LearnerGroup", runners: "EnvRunnerGroup") -> dict[str, float]:
    """Has all runners serve the learners' present adapter, proves it, and returns the metrics.

    Raises: DeliveryError if a runner fails twice, TrainingError if no replacements are left.
    """
    start_s = time.perf_counter()
    shipment = learners.pack_adapter()
    proof = send_and_prove(shipment, runners)
    metrics = {f"delivery/{name}": value for name, value in proof.items()}
    return {**metrics, "time/broadcast_s": time.perf_counter() - start_s}


def send_and_prove(shipment: Shipment, runners: "EnvRunnerGroup") -> dict[str, float]:
    """Has all runners serve a packed adapter; returns each metric's worst value over them."""
    worst: dict[str, float] = {}
    for metrics in runners.deliver(shipment):
        for name, value in metrics.items():
            choose = min if name in _HIGHER_IS_BETTER else max
            worst[name] = choose(worst.get(name, value), value)
    return worst


def pack(learner: "Learner") -> tuple[AdapterVersion, AdapterAck, Probe | None]:
    """Returns the learner's present adapter, its receipt, and a probe if one is due."""
    from agentpeft.policies.models.load import travels_in_bfloat16

    settings = learner.settings
    adapter = learner.adapter(in_bfloat16=travels_in_bfloat16(settings, learner.policy.model))
    interval = settings.fault_tolerance.probe_interval
    is_due = interval > 0 and adapter.version % interval == 0
    has_weights = settings.env_runners.engine != "scripted"
    probe = make_probe(learner.policy, settings) if is_due and has_weights else None
    return adapter, AdapterAck(adapter.version, adapter.sha256), probe


def serve(runner: "EnvRunner", adapter: AdapterVersion, sequences: Sequence[Ids] | None) -> Answer:
    """Has the runner serve the adapter, and score the sequences with what it serves.

    Raises: DeliveryError if something else arrived than was sent, EngineError.
    """
    try:
        ack, proof = runner.serve(adapter, sequences)
    except EngineError:
        ack, proof = ack_of(adapter), None  # what does not fit may have been damaged on its way
        if ack.sha256 == adapter.sha256:
            raise
    if ack.sha256 != adapter.sha256:  # said here, where the weights are; `check` would say it too
        sent = f"{ack.sha256:.12}, sent was {adapter.sha256:.12}"
        raise DeliveryError(f"adapter {adapter.version} arrived damaged ({sent})")
    return ack, proof


def check(answer: Answer, shipment: Shipment) -> dict[str, float]:
    """Returns how far learner and engine are apart; nothing without a probe.

    Raises: DeliveryError if the runner serves anything but the shipment's adapter.
    """
    (ack, proof), receipt = answer, shipment.receipt
    if ack != receipt:
        sent = f"sent was {receipt.version} ({receipt.sha256:.12})"
        raise DeliveryError(f"it answers with adapter {ack.version} ({ack.sha256:.12}), {sent}")
    if shipment.probe is None:
        return {}
    if proof is None:
        raise DeliveryError(f"it acknowledges adapter {receipt.version}, but gives no proof of it")
    metrics = compute_delivery_metrics(shipment.probe, proof)
    problem = find_problem(metrics, shipment.probe)
    if problem is not None:
        raise DeliveryError(f"it acknowledges adapter {receipt.version}, but {problem}")
    return metrics
