"""Several adapters served at once by the embedded engine, and episodes that are routed to them."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.envs import SettingsError
from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
from agentpeft.policies.engines.wrapping import RoutingEngine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import GenerationRequest
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.lora.open_adapters import open_adapter, open_adapters
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import LoraSettings

STOP, RANKS = 39, (2, 4, 3)


def make_base(name="base"):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    return PolicyBase(Qwen2ForCausalLM(config).train(False), None, name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Adapters of several ranks, which change the base a lot."""
    found = []
    for number, rank in enumerate(RANKS):
        policy = attach_lora(make_base(), LoraSettings(rank=rank, alpha=8.0))
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in policy.trainable_parameters():
                parameter.normal_(0, 0.3)
        found.append(tmp_path_factory.mktemp("adapter"))
        policy.save(found[-1])
    return found


def make_engine(model, **settings):
    own = EngineSettings(needs_adapter=False, deterministic=True, **settings)
    return TransformersEngine(model, [STOP], own)


@pytest.fixture
def engine(folders):
    """Serves all adapters."""
    model, names = open_adapters(make_base(), folders)
    engine = make_engine(model, adapters=names, max_concurrent=8)
    yield engine
    engine.close()


async def play(engine, index, version):
    """Returns what is sampled in three turns; groups of four sessions share their first prompt."""
    rng = np.random.default_rng(index // 4)
    ids, prefix, answers = rng.integers(0, STOP, 6 + index // 4), f"g{index // 4}", []
    for turn in range(3):
        request = GenerationRequest(f"s{index}", ids, (index, turn), 0.8, 6, prefix, version)
        answers.append(await engine.generate(request))
        ids = np.concatenate([ids, answers[-1].token_ids, rng.integers(0, STOP, 2)])
        prefix = None
    return answers


def play_all(engine, versions):
    async def gather():
        engine.update_sessions(opened=[f"s{index}" for index in versions])
        try:
            played = await asyncio.gather(*(play(engine, *each) for each in versions.items()))
        finally:
            engine.update_sessions(closed=[f"s{index}" for index in versions])
        return dict(zip(versions, played, strict=True))

    return asyncio.run(gather())


def is_alike(one, other):
    return all(
        np.array_equal(a.token_ids, b.token_ids) and np.allclose(a.logprobs, b.logprobs, atol=1e-4)
        for a, b in zip(one, other, strict=True)
    )


def test_adapters_that_are_served_together_answer_as_each_does_alone(engine, folders):
    numbers = {index: index % len(folders) for index in range(24)}
    together = play_all(engine, numbers)
    for number, folder in enumerate(folders):
        own = [index for index, each in numbers.items() if each == number]
        alone = make_engine(open_adapter(make_base(), folder).get_base_model())
        answers = play_all(alone, dict.fromkeys(own, 0))
        alone.close()
        assert all(is_alike(together[index], answers[index]) for index in own)
        others = play_all(engine, dict.fromkeys(own, (number + 1) % len(folders)))
        assert not any(is_alike(together[index], others[index]) for index in own)


def test_a_session_that_changes_its_adapter_leaves_what_was_cached(engine):
    ids = np.arange(12)
    first = GenerationRequest("s", ids, (0,), 0.0, 4, adapter_version=0)
    requests = [first, replace(first, adapter_version=1), replace(first, session="fresh")]
    requests[2] = replace(requests[2], adapter_version=1)

    def ask(request):
        engine.update_sessions(opened=[request.session])
        try:
            return asyncio.run(engine.generate(request))
        finally:
            if request is not first:
                engine.update_sessions(closed=[request.session])

    before, changed, fresh = map(ask, requests)
    assert is_alike([changed], [fresh])
    assert not is_alike([before], [fresh])


@pytest.mark.parametrize("version", [None, -1, 3])
def test_an_adapter_that_is_not_there_is_refused(engine, version):
    engine.update_sessions(opened=["s"])
    request = GenerationRequest("s", np.arange(3), (0,), adapter_version=version)
    with pytest.raises(EngineError, match=f"adapter {version} is not served, but 0 to 2"):
        asyncio.run(engine.generate(request))
    engine.update_sessions(closed=["s"])


def test_an_episode_keeps_the_adapter_that_its_prompt_has_chosen(engine):
    asked = []

    def choose(ids):
        asked.append(ids)
        return len(ids) % len(RANKS)

    routed = RoutingEngine(engine, choose)
    answers = play_all(routed, dict.fromkeys(range(12), 7))
    assert len(asked) == 12
    assert {each.adapter_version for own in answers.values() for each in own} == {7}
    direct = play_all(engine, {index: (6 + index // 4) % len(RANKS) for index in range(12)})
    assert all(is_alike(answers[index], direct[index]) for index in range(12))
    play_all(routed, dict.fromkeys(range(4), 0))
    assert len(asked) == 16
    with pytest.raises(EngineError, match="2 sequences cannot be scored"):
        asyncio.run(routed.score([np.arange(3)] * 2))


def test_adapters_of_another_base_are_no_part(folders, tmp_path):
    attach_lora(make_base("other"), LoraSettings(rank=2)).save(tmp_path)
    with pytest.raises(SettingsError, match=f"wrong base: the adapter {tmp_path} was trained on"):
        open_adapters(make_base(), [folders[0], tmp_path])


def test_an_adapter_that_follows_a_cancelled_one_has_keys_of_its_own(folders):
    model, names = open_adapters(make_base(), folders)
    settings = EngineSettings(needs_adapter=False, adapters=names, max_concurrent=8)
    engine = TransformersEngine(model, [], settings)
    engine.update_sessions(opened=["a", "b"])
    fresh = GenerationRequest("b", np.arange(20), (0,), 1.0, 4, "p", 1)
    long = replace(fresh, session="a", max_new_tokens=100, adapter_version=0)

    async def scenario():
        asked = asyncio.ensure_future(engine.generate(long))
        await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.wait([asked])
        return await engine.generate(replace(fresh, session="a"))

    after, expected = asyncio.run(scenario()), asyncio.run(engine.generate(fresh))
    engine.close()
    assert after.token_ids.tolist() == expected.token_ids.tolist()
    np.testing.assert_allclose(after.logprobs, expected.logprobs, atol=1e-5)
