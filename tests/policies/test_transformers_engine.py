import asyncio
from asyncio import Future
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from process_parts import wait_until

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.transformers import engine as engine_module
from agentpeft.policies.engines.transformers.batching import Batch, DecodingJob, Row
from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
from agentpeft.policies.engines.transformers.slots import prepare_attention
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import GenerationRequest, StopReason

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64} | HEADS
SIZES |= {"vocab_size": 40, "max_position_embeddings": 128}
MODELS = {
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, head_dim=8)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
}
STOP = 39
BASE = EngineSettings(needs_adapter=False)


def make_model(name="qwen2"):
    torch.manual_seed(0)
    model = MODELS[name]()
    for parameter in model.parameters():
        parameter.data.mul_(2)  # far from uniform
    model.generation_config = hf.GenerationConfig(do_sample=True, top_k=1, repetition_penalty=2.0)
    return model


def prompt_of(length, seed=0):
    return np.random.default_rng(seed).integers(0, STOP, length)


def full_logprobs(model, prompt, sampled, temperature=1.0):
    """Of the sampled ids, by one plain forward pass."""
    ids = torch.tensor(np.concatenate([prompt, sampled]))[None]
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).numpy()[np.arange(len(sampled)), sampled]


def serve(model, requests, settings=BASE, stops=(STOP,)):
    """Answers of one wave of requests."""
    engine = TransformersEngine(model, stops, settings)
    engine.update_sessions(opened=[request.session for request in requests])

    async def ask():
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    try:
        return asyncio.run(ask())
    finally:
        engine.close()


async def play(engine, index, num_turns=3):
    """Plays an episode with observations of different lengths; yields (prompt, completion)."""
    session, turns = f"s{index}", []
    engine.update_sessions(opened=[session])
    ids, prefix = prompt_of(5 + index // 3, index // 3), f"g{index // 3}"
    for turn in range(num_turns):
        request = GenerationRequest(session, ids, (index, turn), 0.7, 3 + index % 5, prefix)
        turns.append((ids, await engine.generate(request)))
        ids = np.concatenate([ids, turns[-1][1].token_ids, prompt_of(1 + index % 4, turn)])
        prefix = None
    engine.update_sessions(closed=[session])
    return turns


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("settings", [BASE, replace(BASE, max_concurrent=5)])
def test_logprobs_over_several_turns_are_those_of_a_full_forward_pass(name, settings):
    model = make_model(name)
    engine = TransformersEngine(model, [STOP], settings)

    async def gather():
        return await asyncio.gather(*(play(engine, index) for index in range(24)))

    turns = [turn for turns in asyncio.run(gather()) for turn in turns]
    engine.close()
    for prompt, completion in turns:
        expected = full_logprobs(model, prompt, completion.token_ids, 0.7)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5)


def test_bfloat16_is_served():
    model = make_model().bfloat16()
    request = GenerationRequest("a", prompt_of(9), (0,), max_new_tokens=5)
    (completion,) = serve(model, [request])
    expected = full_logprobs(model, request.prompt_ids, completion.token_ids)
    np.testing.assert_allclose(completion.logprobs, expected, atol=0.1)


@pytest.mark.parametrize("length", [1, 2, 3, 9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prompts_of_any_length_are_shared_in_16_bits(dtype, length):
    model, prompt = make_model().to(dtype), prompt_of(length)
    requests = [GenerationRequest(f"{i}", prompt, (i,), 1.0, 5, "p") for i in range(3)]
    for completion in serve(model, requests):
        expected = full_logprobs(model, prompt, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=0.1)


def test_samples_follow_the_softmax_whatever_the_generation_config_says():
    model, num, temperature = make_model(), 4000, 1.5
    prompt = prompt_of(6)
    requests = [GenerationRequest(f"{i}", prompt, (i,), temperature, 1, "p") for i in range(num)]
    sampled = [int(c.token_ids[0]) for c in serve(model, requests)]
    with torch.no_grad():
        logits = model(torch.tensor(prompt)[None]).logits[0, -1] / temperature
    expected = logits.softmax(-1).numpy() * num
    seen = np.bincount(sampled, minlength=40)
    chi_square = ((seen - expected) ** 2 / expected)[expected > 5].sum()
    assert chi_square < 80  # 39 degrees of freedom: one in 10,000 is greater


def test_a_sample_depends_on_its_seed_and_not_on_the_batch():
    model = make_model()
    requests = [GenerationRequest(f"{i}", prompt_of(4 + i, i), (i,), 1.0, 8) for i in range(12)]
    together = serve(model, requests)
    alone = [serve(model, [request])[0] for request in requests]
    assert [c.token_ids.tolist() for c in together] == [c.token_ids.tolist() for c in alone]


def test_sharing_a_prefix_changes_nothing():
    model = make_model()
    asks = [(f"{i}", prompt_of(7, i // 4), (i,), 1.0, 6, f"g{i // 4}") for i in range(12)]
    shared = [GenerationRequest(*ask) for ask in asks]
    plain = [replace(request, prefix=None) for request in shared]
    for settings in (BASE, replace(BASE, max_concurrent=3)):
        for one, other in zip(serve(model, shared, settings), serve(model, plain), strict=True):
            np.testing.assert_array_equal(one.token_ids, other.token_ids)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_one_prefix_name_for_two_prompts_is_harmless():
    model = make_model()
    requests = [GenerationRequest(f"{i}", prompt_of(7, i), (i,), 1.0, 6, "same") for i in range(3)]
    for request, completion in zip(requests, serve(model, requests), strict=True):
        expected = full_logprobs(model, request.prompt_ids, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5)


def test_temperature_zero_is_greedy_with_logprobs_of_temperature_one():
    model, prompt = make_model(), prompt_of(6)
    request = GenerationRequest("a", prompt, (0,), 0.0, 5)
    (completion,) = serve(model, [request], stops=())
    ids = prompt
    for _ in range(5):
        with torch.no_grad():
            ids = np.append(ids, model(torch.tensor(ids)[None]).logits[0, -1].argmax())
    np.testing.assert_array_equal(completion.token_ids, ids[6:])
    expected = full_logprobs(model, prompt, ids[6:])
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5)


def test_every_way_to_end_is_named():
    model, everything = make_model(), range(40)
    request = GenerationRequest("a", prompt_of(6), (0,), 1.0, 5)
    small = replace(BASE, max_context_tokens=8)
    full = replace(BASE, max_context_tokens=6)
    cases = [
        (serve(model, [request], stops=everything), 1, StopReason.STOP_TOKEN),
        (serve(model, [request], stops=()), 5, StopReason.MAX_NEW_TOKENS),
        (serve(model, [request], small, stops=()), 2, StopReason.CONTEXT_FULL),
        (serve(model, [request], full, stops=()), 0, StopReason.CONTEXT_FULL),
    ]
    for (completion,), num_tokens, reason in cases:
        assert (len(completion.token_ids), completion.stop_reason) == (num_tokens, reason)


def test_a_cancelled_request_frees_its_place_and_its_session_goes_on():
    model, prompt = make_model(), prompt_of(6)
    engine = TransformersEngine(model, [], replace(BASE, max_concurrent=1))
    engine.update_sessions(opened=["a", "b"])

    async def scenario():
        long = GenerationRequest("a", prompt, (0,), 1.0, 120)
        task = asyncio.create_task(engine.generate(long))
        await asyncio.sleep(0.02)
        task.cancel()
        other = await engine.generate(replace(long, session="b", max_new_tokens=3))
        again = await engine.generate(replace(long, max_new_tokens=3))
        return task.cancelled(), other, again

    cancelled, other, again = asyncio.run(scenario())
    engine.close()
    assert cancelled
    np.testing.assert_array_equal(other.token_ids, again.token_ids)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_of_the_model_reaches_everybody_who_waits():
    model = make_model()
    engine = TransformersEngine(model, [], replace(BASE, max_concurrent=1))
    engine.update_sessions(opened=["a", "b"])
    bad = GenerationRequest("a", np.array([1, 4000]), (0,))  # no such token

    async def ask():
        asked = (engine.generate(bad), engine.generate(replace(bad, session="b")))
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)

    for error in asyncio.run(ask()):
        assert isinstance(error, EngineError)
    with pytest.raises(EngineError, match="the engine failed: IndexError"):
        asyncio.run(engine.generate(bad))
    engine.close()


def test_requests_of_several_event_loops_are_answered_together():
    engine = TransformersEngine(make_model(), [], replace(BASE, deterministic=True))
    engine.update_sessions(opened=["a", "b"])

    def ask(session):
        request = GenerationRequest(session, prompt_of(5), (0,), 1.0, 3)
        return asyncio.run(asyncio.wait_for(engine.generate(request), 10))

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(ask, "ab")
    engine.close()
    assert one.token_ids.tolist() == other.token_ids.tolist()


def test_closing_ends_what_is_under_way():
    engine = TransformersEngine(make_model(), [], BASE)
    engine.update_sessions(opened=["a", "b"])

    async def scenario():
        request = GenerationRequest("a", prompt_of(3), (0,), 1.0, 120)
        tasks = [asyncio.create_task(engine.generate(replace(request, session=s))) for s in "ab"]
        await asyncio.sleep(0.01)
        engine.update_sessions(closed=["a"])
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    closed, ended = asyncio.run(scenario())
    assert "session 'a' was closed" in str(closed)
    assert "the engine is closed" in str(ended)
    engine.close()


def test_requests_that_cannot_be_served_are_errors():
    engine = TransformersEngine(make_model(), [STOP], EngineSettings())
    request = GenerationRequest("a", prompt_of(3), (0,))
    with pytest.raises(EngineError, match="no adapter"):
        asyncio.run(engine.generate(request))
    engine.load_adapter(version_of(1, 0.0))
    with pytest.raises(EngineError, match="not open"):
        asyncio.run(engine.generate(request))
    engine.close()


def version_of(number, value):
    prefix = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    weights = {
        f"{prefix}A.weight": np.full((2, 32), 0.5, np.float32),
        f"{prefix}B.weight": np.full((64, 2), value, np.float32),
    }
    return make_version(number, "run", weights, 2.0)


def test_an_adapter_is_fused_into_the_pristine_base_and_old_keys_are_dropped():
    model, request = make_model(), GenerationRequest("a", prompt_of(6), (0,), 1.0, 4)
    plain = model.state_dict()["model.layers.0.mlp.up_proj.weight"].clone()
    engine = TransformersEngine(model, [], EngineSettings())
    engine.update_sessions(opened=["a"])
    for number, value in ((1, 0.3), (2, -0.1), (3, 0.0)):
        engine.load_adapter(version_of(number, value))
        completion = asyncio.run(engine.generate(request))
        expected = plain + 2.0 * (0.5 * value * 2)
        torch.testing.assert_close(model.model.layers[0].mlp.up_proj.weight.data, expected)
        logprobs = full_logprobs(model, request.prompt_ids, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, logprobs, atol=1e-5)
        assert completion.adapter_version == number
    engine.close()


async def play_with_delays(engine, index, rng):
    turns, ids = [], prompt_of(5 + index // 3, index // 3)
    for turn in range(3):
        await asyncio.sleep(rng.random() / 200)
        request = GenerationRequest(f"s{index:02}", ids, (index, turn), 1.0, 6, f"{index // 3}")
        turns.append((ids, await engine.generate(request)))
        ids = np.concatenate([ids, turns[-1][1].token_ids, prompt_of(2, turn)])
    engine.update_sessions(closed=[f"s{index:02}"])
    return turns


@pytest.mark.parametrize("seed", [1, 2])
def test_deterministic_runs_are_equal_to_the_bit_in_whatever_order_they_ask(seed):
    settings = replace(BASE, max_concurrent=5, deterministic=True)

    def run(rng):
        engine = TransformersEngine(make_model(), [], settings)
        engine.update_sessions(opened=[f"s{index:02}" for index in range(12)])

        async def gather():
            return await asyncio.gather(*(play_with_delays(engine, i, rng) for i in range(12)))

        turns = [turn for turns in asyncio.run(gather()) for turn in turns]
        engine.close()
        return [(c.token_ids.tolist(), c.logprobs.tobytes()) for _, c in turns]

    assert run(np.random.default_rng(0)) == run(np.random.default_rng(seed))


WINDOWED = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
REFUSED = [
    lambda: hf.MistralForCausalLM(hf.MistralConfig(**SIZES, sliding_window=16)),
    lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES, **WINDOWED)),
    lambda: hf.MambaForCausalLM(hf.MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1)),
]


@pytest.mark.parametrize("make", REFUSED)
def test_models_without_full_attention_are_refused(make):
    with pytest.raises(SettingsError, match="full attention"):
        TransformersEngine(make(), [STOP], BASE)


def record_shapes(model):
    """The shapes (B, T) of the model's forward passes, as they come."""
    shapes = []
    model.register_forward_pre_hook(
        lambda _module, _args, inputs: shapes.append(tuple(inputs["input_ids"].shape)),
        with_kwargs=True,
    )
    return shapes


def test_short_prompts_are_not_padded_to_a_long_one():
    model = make_model()
    shapes = record_shapes(model)
    lengths = [5] * 20 + [100]
    requests = [
        GenerationRequest(f"{i}", prompt_of(n, i), (i,), 1.0, 1) for i, n in enumerate(lengths)
    ]
    serve(model, requests, replace(BASE, deterministic=True))
    assert shapes == [(20, 4), (1, 99), (21, 1)]


def test_a_prompt_that_is_shared_is_run_once_and_its_keys_lie_once():
    model = make_model()
    shapes = record_shapes(model)
    engine = TransformersEngine(model, [], replace(BASE, deterministic=True))
    names = [f"{i:02}" for i in range(16)]
    requests = [
        GenerationRequest(name, prompt_of(70, i // 8), (i,), 1.0, 3, f"g{i // 8}")
        for i, name in enumerate(names)
    ]

    async def ask():
        await asyncio.gather(*map(engine.generate, requests))

    for _ in range(2):  # sessions that are closed leave their prompts' places to the next ones
        shapes.clear()
        engine.update_sessions(opened=names)
        asyncio.run(ask())
        engine.update_sessions(closed=names)
        assert shapes == [(2, 69), (16, 1), (16, 1), (16, 1)]
    rows, prompts = engine._batch._cache.rows, engine._batch._cache.prompts
    assert (rows.states.shape[4], prompts.states.shape[2]) == (64, 2)
    engine.close()


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_different_prompts_share_the_beginning_that_they_have_in_common(is_deterministic):
    model = make_model()
    shapes = record_shapes(model)
    settings = replace(BASE, deterministic=is_deterministic, max_concurrent=6)
    engine = TransformersEngine(model, [], settings)
    beginning = prompt_of(50)
    prompts = [np.concatenate([beginning, [i], prompt_of(3, i)]) for i in range(5)]
    prompts.append(prompt_of(4, 9))  # of another kind
    requests = [GenerationRequest(f"{i}", ids, (i,), 1.0, 3) for i, ids in enumerate(prompts)]
    stranger = replace(requests[0], session="9", prompt_ids=prompt_of(20, 1))

    async def ask(*asked):
        return await asyncio.gather(*map(engine.generate, asked))

    for _ in range(2):  # of closed sessions the beginning is forgotten
        shapes.clear()
        engine.update_sessions(opened=[request.session for request in requests])
        answers = asyncio.run(ask(*requests))
        assert shapes == [(1, 50), (6, 3), (6, 1), (6, 1), (6, 1)]
        engine.update_sessions(closed=[request.session for request in requests[3:]])
        if not is_deterministic:  # those who come later share it too, if they begin so
            shapes.clear()
            engine.update_sessions(opened=["4", "9"])
            answers[4], other = asyncio.run(ask(requests[4], stranger))
            assert max(num_columns for _, num_columns in shapes) == 19
            expected = full_logprobs(make_model(), stranger.prompt_ids, other.token_ids)
            np.testing.assert_allclose(other.logprobs, expected, atol=1e-5)
            engine.update_sessions(closed=["4", "9"])
        engine.update_sessions(closed=[request.session for request in requests[:3]])
        for request, answer in zip(requests, answers, strict=True):
            expected = full_logprobs(make_model(), request.prompt_ids, answer.token_ids)
            np.testing.assert_allclose(answer.logprobs, expected, atol=1e-5)
    engine.close()


@pytest.mark.parametrize(("attention", "num_rows"), [("sdpa", 4), ("sdpa", 3), ("eager", 4)])
@pytest.mark.parametrize("has_group", [False, True])
def test_beginnings_are_shared_where_that_saves_work(attention, num_rows, has_group):
    model = make_model()
    model.set_attn_implementation(attention)
    shapes = record_shapes(model)
    prompts = [np.concatenate([prompt_of(40), [i]]) for i in range(num_rows)]
    requests = [GenerationRequest(f"{i}", ids, (i,), 1.0, 2) for i, ids in enumerate(prompts)]
    group = [GenerationRequest(f"g{i}", prompt_of(30, 1), (i,), 1.0, 2, "g") for i in range(4)]
    serve(model, requests + group * has_group, replace(BASE, deterministic=True))
    is_worth_it = attention == "sdpa" and num_rows >= 4 and not has_group
    assert ((1, 40) in shapes) == is_worth_it


@pytest.mark.parametrize("is_released", [False, True])
def test_which_beginnings_a_wave_shares_does_not_depend_on_when_earlier_rows_go(is_released):
    model = make_model().eval()
    model.set_attn_implementation("sdpa")
    prepare_attention(model)
    shapes = record_shapes(model)
    batch = Batch(model, 8, 64, in_waves=True)

    def play(prompts, prefix):
        rows = [Row(f"{i}") for i in range(len(prompts))]
        numbers = np.zeros(1, np.float32)
        rest = 1.0, prefix, StopReason.MAX_NEW_TOKENS, Future(loop=loop)
        batch.admit(
            [
                DecodingJob(row, "", ids, numbers, *rest)
                for row, ids in zip(rows, prompts, strict=True)
            ]
        )
        batch.step([])
        return rows

    with closing(asyncio.new_event_loop()) as loop, torch.inference_mode():
        rows = play([prompt_of(30, 1)] * 4, "g")
        for row in rows if is_released else ():
            batch.release(row)
        shapes.clear()
        play([np.concatenate([prompt_of(40), [i]]) for i in range(4)], None)
    assert shapes == [(1, 40), (4, 1)]


def test_attention_that_the_engine_cannot_mask_is_refused():
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES))
    model.set_attn_implementation("flex_attention")
    with pytest.raises(SettingsError, match="'sdpa' or 'eager', got 'flex_attention'"):
        TransformersEngine(model, [STOP], BASE)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rows_with_and_without_shared_prompts_attend_together(num_kv_heads, attention):
    torch.manual_seed(1)
    config = hf.LlamaConfig(**SIZES | {"num_key_value_heads": num_kv_heads})
    model = hf.LlamaForCausalLM(config)
    model.set_attn_implementation(attention)
    engine = TransformersEngine(model, [STOP], replace(BASE, max_concurrent=11))
    rng = np.random.default_rng(0)

    async def play_one(index):
        """Three turns, of which the last begins anew, as a chat that forgets its thoughts does."""
        session, group = f"s{index}", int(rng.integers(6))
        engine.update_sessions(opened=[session])
        first = prompt_of(3 + 4 * group, group)
        prefix = f"g{group}" if group else None
        turns, ids = [], first
        for turn in range(3):
            request = GenerationRequest(session, ids, (index, turn), 1.0, 2 + index % 7, prefix)
            turns.append((ids, await engine.generate(request)))
            ids = np.concatenate([ids, turns[-1][1].token_ids, prompt_of(1 + index % 5, turn)])
            ids = np.concatenate([first[:-1], prompt_of(4, index)]) if turn == 1 else ids
            prefix = None
        engine.update_sessions(closed=[session])
        return turns

    async def gather():
        return await asyncio.gather(*map(play_one, range(40)))

    turns = [turn for turns in asyncio.run(gather()) for turn in turns]
    assert wait_until(lambda: not engine._batch._prompts)  # its thread forgets what was closed
    engine.close()
    for prompt, completion in turns:
        expected = full_logprobs(model, prompt, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_one_token_attends_as_any_attention_of_transformers_does(name, dtype):
    requests = [
        GenerationRequest(f"s{n}", prompt_of(3 + n // 2, n // 2), (n,), 1.0, 12, f"{n // 2}")
        for n in range(9)
    ]
    own, eager = make_model(name).to(dtype), make_model(name).to(dtype)
    eager.set_attn_implementation("eager")
    found = serve(own, requests)
    assert own.config._attn_implementation == "agentpeft_slots"
    limit = 1e-5 if dtype == torch.float32 else 0.1
    for request, answer in zip(requests, found, strict=True):
        expected = full_logprobs(eager, request.prompt_ids, answer.token_ids)
        assert np.abs(answer.logprobs - expected).max() < limit
    assert serve(eager, requests)
    assert eager.config._attn_implementation == "eager"


def test_an_engine_may_follow_another_over_the_same_model():
    model = make_model()
    request = GenerationRequest("a", prompt_of(8), (1,), 1.0, 8)
    first, second = (serve(model, [request])[0] for _ in range(2))
    assert np.array_equal(first.token_ids, second.token_ids)


@pytest.mark.parametrize("prefix", ["p", None])
def test_keys_that_are_not_finite_reach_no_later_row(prefix):
    model = make_model()
    engine = TransformersEngine(model, [STOP], BASE)
    norm = model.model.layers[0].input_layernorm.weight
    sound = norm.data
    requests = [GenerationRequest(f"s{n}", prompt_of(30), (n,), 1.0, 6, prefix) for n in range(8)]
    engine.update_sessions(opened=[request.session for request in requests])

    async def ask():
        asked = map(engine.generate, requests)
        return await asyncio.gather(*asked, return_exceptions=True)

    norm.data = torch.full_like(sound, torch.nan)
    first = asyncio.run(ask())
    norm.data = sound
    for error in [*first, *asyncio.run(ask())]:
        assert isinstance(error, EngineError) and "not finite" in str(error)
    engine.close()


SPECIAL_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OTHERS = {  # they hand no options on to their attention, or change values before it
    "stablelm": lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**SIZES, **SPECIAL_IDS)),
    "nemotron": lambda: hf.NemotronForCausalLM(hf.NemotronConfig(**SIZES, **SPECIAL_IDS)),
    "diffllama": lambda: hf.DiffLlamaForCausalLM(hf.DiffLlamaConfig(**SIZES, **SPECIAL_IDS)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_prompts_are_shared_whatever_a_model_does_with_keys_and_values(name):
    torch.manual_seed(0)
    model = OTHERS[name]().eval()
    requests = [
        GenerationRequest(f"{i}", prompt_of(6 + i // 3, i // 3), (i,), 1.0, 6, f"g{i // 3}")
        for i in range(9)
    ]
    requests[-1] = replace(requests[-1], prefix=None)
    for request, answer in zip(requests, serve(model, requests), strict=True):
        expected = full_logprobs(model, request.prompt_ids, answer.token_ids)
        np.testing.assert_allclose(answer.logprobs, expected, atol=1e-5)


def test_a_context_that_differs_within_its_prompt_is_run_from_there_on():
    model = make_model()
    shapes = record_shapes(model)
    engine = TransformersEngine(model, [], replace(BASE, deterministic=True))
    names, prompt = [f"{i}" for i in range(8)], prompt_of(60)
    other = np.concatenate([prompt[:-3], prompt_of(6, 6)])
    engine.update_sessions(opened=names)

    async def ask(ids, prefix):
        asked = (GenerationRequest(name, ids, (0,), 1.0, 2, prefix) for name in names)
        return await asyncio.gather(*map(engine.generate, asked))

    asyncio.run(ask(prompt, "g"))
    shapes.clear()
    answers = asyncio.run(ask(other, None))
    engine.close()
    assert shapes == [(8, 5), (8, 1), (8, 1)]
    for answer in answers:
        expected = full_logprobs(make_model(), other, answer.token_ids)
        np.testing.assert_allclose(answer.logprobs, expected, atol=1e-5)


def test_a_session_that_cancels_before_its_turn_and_asks_again_is_answered(monkeypatch):
    monkeypatch.setattr(engine_module, "QUIET_S", 0.2)  # the idle engine waits for session b
    engine = TransformersEngine(make_model(), [STOP], BASE)
    engine.update_sessions(opened=["a", "b"])

    async def scenario():
        request = GenerationRequest("a", prompt_of(9), (0,), 1.0, 20)
        await asyncio.sleep(0.1)
        asked = asyncio.ensure_future(engine.generate(request))
        await asyncio.sleep(0.05)
        asked.cancel()
        await asyncio.wait([asked])
        return await asyncio.wait_for(engine.generate(request), 10)

    assert len(asyncio.run(scenario()).token_ids)
    engine.close()
