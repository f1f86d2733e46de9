"""Faults on the way of an adapter, in one process: each is caught at the delivery."""

from dataclasses import replace

import numpy as np
import pytest
from faulty_parts import EngineAround, runner_with
from small_model import ONE_PROCESS

from agentpeft.policies.delivery import probe
from agentpeft.policies.delivery.deliver import send_and_prove
from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.engines import fusing
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.engines.transformers.engine import TransformersEngine
from agentpeft.policies.errors import DeliveryError, EngineError, TrainingError
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerActor, EnvRunnerGroup

TINY = (
    *ONE_PROCESS,
    "lora.rank=2",
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


class SteppingLearner(LearnerActor):
    """Takes the steps that a test asks for."""

    def next_version(self):
        """Random steps in all weights: B is no longer zero, and the version is one more."""
        learner = self.learner
        rng = np.random.default_rng(learner.version)
        weights = learner.policy.adapter_weights()
        steps = {n: (0.05 * rng.normal(size=w.shape)).astype("f4") for n, w in weights.items()}
        learner.policy.load_weights({name: weights[name] + steps[name] for name in weights})
        learner.version += 1

    def shrink_to(self, size):
        weights = self.learner.policy.adapter_weights()
        small = {n: size * np.sign(w) if "lora_B" in n else w for n, w in weights.items()}
        self.learner.policy.load_weights(small)


@pytest.fixture
def start():
    """Returns a learner and runners that have its first adapter; closed at the end."""
    started = []

    def make(*overrides, kind=EnvRunnerActor):
        settings = Settings(**with_overrides({}, (*TINY, *overrides)))
        learner = LearnerGroup(settings, SteppingLearner)
        runners = EnvRunnerGroup(settings, kind=kind)
        started.extend([learner, runners])
        assert "canary" not in send_and_prove(learner.pack_adapter(), runners)  # B is zero
        return learner, runners

    yield make
    for group in started:
        group.close()


def first_only(around):
    """Returns what does `around` to the first engine, and nothing to those that follow it."""
    engines = []

    def around_first(engine):
        engines.append(engine)
        return around(engine) if len(engines) == 1 else engine

    return around_first


def changed(adapter, change, part="lora_B"):
    weights = {n: change(w) if part in n else w for n, w in adapter.weights.items()}
    return replace(adapter, weights=weights)


FULL = "lora.rank=0"
DAMAGES = {
    "truncated": lambda a: changed(a, lambda w: w[:-1]),
    "incomplete": lambda a: replace(a, weights=dict(list(a.weights.items())[:-1])),
    "a bit flipped": lambda a: changed(a, lambda w: (w.view("u4") ^ 1).view("f4"), "0.self_attn.q"),
    "B zeroed": lambda a: changed(a, np.zeros_like),
    "all weights: incomplete": lambda a: replace(a, weights=dict(list(a.weights.items())[:-1])),
    "all weights: a bit flipped": lambda a: changed(
        a, lambda w: (w.view("u4") ^ 1).view("f4"), "norm"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_in_transit_is_found_by_the_hash_and_sent_again(start, damage):
    num_calls, overrides = [], [FULL] if damage.startswith("all weights") else []

    class DamagedRunner(EnvRunnerActor):
        """Its second delivery, the first of an adapter that changes anything, arrives damaged."""

        def deliver(self, adapter, sequences):
            num_calls.append(1)
            arrived = map(DAMAGES[damage], adapter) if len(num_calls) == 2 else adapter
            return super().deliver(list(arrived), sequences)

    learner, runners = start(*overrides, kind=DamagedRunner)
    learner.call(SteppingLearner.next_version)
    assert send_and_prove(learner.pack_adapter(), runners)["canary"] == pytest.approx(1)
    assert runners.counts == {"num_failed_deliveries": 1, "num_env_runner_restarts": 1}
    sent = learner.pack_adapter()
    shipment = replace(sent, adapter=DAMAGES[damage](sent.adapter))
    with pytest.raises(DeliveryError, match="begun anew: adapter 1 arrived damaged"):
        send_and_prove(shipment, runners)


class LyingEngine(EngineAround):
    """Loads another adapter than the one sent, or none; the first is as it was sent."""

    def __init__(self, engine, mistake):
        super().__init__(engine)
        self.mistake = mistake

    def load_adapter(self, adapter):
        if adapter.version == 0:
            return self.engine.load_adapter(adapter)
        loaded = self.mistake(adapter)
        if loaded is not None:
            self.engine.load_adapter(loaded)
        return ack_of(adapter)


MISTAKES = {
    "skipped": lambda adapter: None,
    "wrong version": lambda adapter: changed(adapter, lambda w: w / 2),
    "B zeroed": lambda adapter: changed(adapter, np.zeros_like),
    "one layer forgotten": lambda adapter: changed(adapter, np.zeros_like, "layers.1.mlp"),
    "all weights: skipped": lambda adapter: None,
    "all weights: one forgotten": lambda adapter: changed(adapter, np.ones_like, "model.norm"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_lying_acknowledgement_is_found_by_the_probe(start, mistake):
    around = first_only(lambda engine: LyingEngine(engine, MISTAKES[mistake]))
    overrides = [FULL] if mistake.startswith("all weights") else []
    learner, runners = start(*overrides, kind=runner_with(around))
    learner.call(SteppingLearner.next_version)
    metrics = send_and_prove(learner.pack_adapter(), runners)
    assert metrics["probe_max"] < 1e-5 and metrics["canary"] == pytest.approx(1)
    assert runners.counts == {"num_failed_deliveries": 1, "num_env_runner_restarts": 1}


def test_a_runner_that_fails_twice_ends_the_run(start):
    learner, runners = start(kind=runner_with(lambda e: LyingEngine(e, MISTAKES["B zeroed"])))
    learner.call(SteppingLearner.next_version)
    with pytest.raises(DeliveryError, match=r"runner 0, begun anew: .* but probe_mean is 0\.\d+ "):
        send_and_prove(learner.pack_adapter(), runners)


def test_without_restarts_the_first_failure_ends_the_run(start):
    learner, runners = start("fault_tolerance.max_num_restarts=0")
    shipment = learner.pack_adapter()
    damaged = replace(shipment, adapter=changed(shipment.adapter, lambda w: w + 1))
    with pytest.raises(DeliveryError, match=r"arrived damaged .*restarts 0 is reached"):
        send_and_prove(damaged, runners)


class StaleEngine(TransformersEngine):
    """Keeps the keys and values of closed sessions, and takes them up under another adapter."""

    def update_sessions(self, opened=(), closed=()):
        with self._wake:
            kept = {name: self._rows[name] for name in closed if name.startswith("probe")}
            self.__dict__.setdefault("_kept", {}).update(kept)
            for name in kept:
                del self._rows[name]
            self._rows.update({name: self._kept[name] for name in opened if name in self._kept})
        super().update_sessions(opened, [name for name in closed if name not in kept])

    def load_adapter(self, adapter):
        self._batch.clear = lambda: None
        return super().load_adapter(adapter)


class StaleFirst(EnvRunnerActor):
    """Its first engine is stale."""

    num_made = 0

    def make_runner(self, settings):
        StaleFirst.num_made += 1
        if StaleFirst.num_made > 1:
            return super().make_runner(settings)
        return EnvRunner(settings, make_player(settings, make_engine=make_stale))


def make_stale(settings, base, chat):
    return StaleEngine(base.model, chat.stop_token_ids)


def test_stale_keys_and_values_are_found_by_sampling(start, caplog):
    learner, runners = start(kind=StaleFirst)
    learner.call(SteppingLearner.next_version)
    metrics = send_and_prove(learner.pack_adapter(), runners)
    assert runners.counts == {"num_failed_deliveries": 1, "num_env_runner_restarts": 1}
    assert metrics["sampling_mean"] < 1e-5
    assert "but sampling_mean is" in caplog.text


def test_a_probe_is_made_at_its_interval_and_has_its_limit(start, monkeypatch):
    learner, runners = start("fault_tolerance.probe_interval=2")
    found = []
    for _ in range(2):
        learner.call(SteppingLearner.next_version)
        found.append(send_and_prove(learner.pack_adapter(), runners))
    assert found[0] == {} and "probe_mean" in found[1]
    learner, runners = start("fault_tolerance.probe_interval=0")
    assert send_and_prove(learner.pack_adapter(), runners) == {}
    monkeypatch.setattr(probe, "_EXACT_LIMIT", 1e-12)
    with pytest.raises(DeliveryError, match=r"probe_mean is .* \(limit 1e-12\)"):
        start("lora.rank=3")


def test_a_step_that_fused_weights_round_away_is_no_delivery(start, monkeypatch):
    base = ("model.dtype=bfloat16", "env_runners.serving=fused")
    learner, runners = start(*base)
    learner.call(SteppingLearner.next_version)
    learner.call(SteppingLearner.shrink_to, 1e-5)
    shipment = learner.pack_adapter()
    assert send_and_prove(shipment, runners)["served_effect"] > 0.9
    monkeypatch.setattr(fusing, "_rounded", lambda weight, dtype, name: weight.to(dtype))
    with pytest.raises(DeliveryError, match=r"but served_effect is 0\.\d+ \(limit 0.8\)"):
        send_and_prove(shipment, runners)


def test_a_script_has_no_proof(start):
    learner, runners = start("env_runners.engine=scripted")
    assert send_and_prove(learner.pack_adapter(), runners) == {}


@pytest.mark.parametrize("algorithm", ["sft", "grpo"])
def test_all_weights_are_proven_as_an_adapter_is(start, algorithm):
    learner, runners = start(f"training.algorithm={algorithm}", FULL)
    learner.call(SteppingLearner.next_version)
    metrics = send_and_prove(learner.pack_adapter(), runners)
    assert metrics["probe_max"] < 1e-5 and metrics["served_effect"] == pytest.approx(1)
    assert metrics["learner_effect"] == pytest.approx(metrics["engine_effect"], rel=1e-4) != 0
    assert metrics["canary"] == pytest.approx(1)


def test_an_engine_that_stays_at_the_base_is_found_by_the_canary_of_all_weights(
    start, caplog, monkeypatch
):
    """The limit is so wide that the log-probabilities alone would pass."""
    around = first_only(lambda engine: LyingEngine(engine, MISTAKES["skipped"]))
    monkeypatch.setattr(probe, "_EXACT_LIMIT", 1.0)
    learner, runners = start(FULL, kind=runner_with(around))
    learner.call(SteppingLearner.next_version)
    assert send_and_prove(learner.pack_adapter(), runners)["canary"] == pytest.approx(1)
    assert runners.counts["num_failed_deliveries"] == 1 and "but canary is" in caplog.text


class FailingEngine(EngineAround):
    """Fails for good once it is told to."""

    def __init__(self, engine, faults):
        super().__init__(engine)
        self.faults = faults

    async def generate(self, request):
        if self.faults:
            raise EngineError(*self.faults)
        return await self.engine.generate(request)


def test_a_failed_engine_is_replaced_and_its_groups_are_drawn_again(start):
    faults = []
    requests = [GroupRequest(position, 2) for position in range(3)]
    around = first_only(lambda engine: FailingEngine(engine, faults))
    _, runners = start(kind=runner_with(around))
    expected, _ = runners.sample(requests)
    faults.append("the engine failed: test")
    groups, report = runners.sample(requests)
    assert [g.trajectories[0].token_ids.tolist() for g in groups] == [
        g.trajectories[0].token_ids.tolist() for g in expected
    ]
    assert report.adapter_versions == (0, 0, 0)
    assert runners.counts == {"num_env_runner_restarts": 1}


def test_an_engine_that_fails_again_ends_the_run(start, monkeypatch):
    def fail(engine, request):
        raise EngineError("out of order")

    requests = [GroupRequest(0, 1)]
    _, runners = start("fault_tolerance.probe_interval=0")
    monkeypatch.setattr(TransformersEngine, "generate", fail)
    with pytest.raises(EngineError, match="out of order"):
        runners.sample(requests)
    assert runners.counts == {"num_env_runner_restarts": 1}
    _, runners = start("fault_tolerance.probe_interval=0", "fault_tolerance.max_num_restarts=0")
    with pytest.raises(TrainingError, match=r"out of order \(.*restarts 0 is reached\)"):
        runners.sample(requests)
