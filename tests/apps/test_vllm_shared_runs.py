"""Runs that share an engine through Ray: whose adapters it serves, and what a dead one leads to."""

import asyncio
import os
import signal
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from process_parts import children_of
from vllm_parts import prompt_of

from agentpeft.apps.shared_engines import host as hosts
from agentpeft.apps.shared_engines.group import SharedEngines, find_hosts
from agentpeft.apps.shared_engines.host import EngineHost, NoSlotError, Wish, base_name
from agentpeft.envs import SettingsError
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.errors import EngineError
from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.models.base_files import find_served_base
from agentpeft.policies.settings.config import Settings, with_overrides

pytestmark = pytest.mark.slow

ENGINES = """
num_cpus_per_process = 0.2
environment = {kwargs = {num_digits = 1, prompt = "compact", reward = {length_cost = 0.1}}}
num_threads = 1
tiny = {hidden_size = 64, num_layers = 1}
lora = {rank = 2}
training = {num_groups = 4, group_size = 3, lr = 1e-2}
evaluation = {num_tasks = 0}
[env_runners]
engine = "vllm"
max_new_tokens = 4
"""
KEPT = "env_runners.kv_cache_gib=0.05"
SHARED = "env_runners.shared_engines=agentpeft.apps.shared_engines:sweep"


def settings_of(*overrides):
    return Settings(**with_overrides(tomllib.loads(ENGINES), overrides))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def engines(vllm, cache):
    """One engine with slots for four adapters."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with SharedEngines(settings_of(KEPT), "sweep", 4) as shared:
        yield shared
    ray.shutdown()


def run_of(folder, name, *overrides):
    settings = settings_of(SHARED, f"experiment={name}", *overrides)
    return Algorithm(settings, folder / name)


def kill_host():
    ray.kill(find_hosts("sweep")[0], no_restart=False)


def kill_vllm():
    """Kills the process in which vLLM has the weights."""
    (host,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes().startswith(b"ray::EngineHost")
    ]
    for pid in children_of(host):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_two_runs_learn_with_one_engine_and_go_on_after_it_dies(engines, tmp_path):
    with run_of(tmp_path, "one") as one, run_of(tmp_path, "two", "max_adapter_lag=1") as two:
        state = engines.look()[0]
        assert (state.num_free, state.runs) == (1, {"one": 1, "two": 1})
        for _ in range(2):
            for run in (one, two):
                metrics = run.train()
                assert metrics["delivery/probe_max"] < 1e-4 < metrics["delivery/engine_effect"]
                assert metrics["fault/num_env_runner_restarts"] == 0
        for number, kill in enumerate((kill_host, kill_vllm), 1):
            kill()
            for run in (one, two):
                metrics = run.train()
                assert metrics["delivery/probe_max"] < 1e-4 < metrics["delivery/engine_effect"]
                assert metrics["fault/num_env_runner_restarts"] >= number
            assert engines.look()[0].runs == {"one": 1, "two": 1}
    state = engines.look()[0]
    assert (state.num_free, state.runs) == (4, {})


@pytest.mark.long
@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("env_runners.shared_engines=agentpeft.apps.shared_engines:others", "none in this cluster"),
        ("lora.rank=16", "lora.rank is 16, and they have slots for rank 2"),
        ("tiny.num_layers=2", "its base is tiny-"),
        ("model.dtype=bfloat16", "model.dtype is bfloat16 .* and theirs float32"),
    ],
)
def test_a_run_that_does_not_fit_is_told_why(engines, override, says):
    with pytest.raises(SettingsError, match=says):
        make_player(settings_of(SHARED, override))


@pytest.mark.long
def test_a_name_is_taken_once(engines):
    with pytest.raises(SettingsError, match="'sweep' in this cluster already"):
        SharedEngines(settings_of(KEPT), "sweep", 4)


@pytest.mark.long
def test_slots_of_who_is_silent_go_to_others(vllm, cache, monkeypatch):
    settings = settings_of(KEPT, "env_runners.serving=native")
    folder, _ = find_served_base(settings)

    def wish_of(run, num_versions):
        base = base_name(folder, settings)
        return Wish(run, base, "float32", 2, num_versions, 1024, (0,))

    monkeypatch.setattr(hosts, "end_with", lambda parent: None)  # the tests' own process
    host = EngineHost(settings, num_slots=3)

    async def scenario():
        with pytest.raises(SettingsError, match=r"up to 1025 tokens .* and theirs 1024"):
            await host.attach("first", replace(wish_of("a", 2), max_context_tokens=1025))
        await host.attach("first", wish_of("a", 2))
        with pytest.raises(NoSlotError, match=r"needs 2 slots .* of 3 1 are free .*'a': 1"):
            await host.attach("second", wish_of("b", 2))
        monkeypatch.setattr(hosts, "LEASE_S", 0.0)
        await host.attach("second", wish_of("b", 2))
        assert (await host.look()).runs == {"b": 1}
        with pytest.raises(EngineError, match="was begun anew, without"):
            await host.score("first", [prompt_of(5)])
        await host.detach("second")
        await host.detach("second")
        assert (await host.look()).num_free == 3

    with closing(host):
        asyncio.run(scenario())
