"""`agentpeft probe`: an endpoint that serves an adapter rightly, and five ways not to."""

import json
import socket
from itertools import combinations

import numpy as np
import pytest
import torch
from model_endpoint import Endpoint, load_base, served
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from qwen_model import save_qwen
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentpeft.apps.probe.canary import write_canary
from agentpeft.apps.probe.probe import main
from agentpeft.apps.probe.references import References
from agentpeft.apps.probe.verdict import Served, find_ignored, judge

TARGETS = ["q_proj", "v_proj", "up_proj", "down_proj"]
SIZES = {"right": 0.3, "wrong": 0.3, "small": 1e-4, "fresh": 0.0}
"""Adapters by the size of the numbers in B: a trained one, another, after a step, and before."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds `base` and the adapters."""
    folder = tmp_path_factory.mktemp("models")
    save_qwen(folder / "base")
    for seed, (name, size) in enumerate(SIZES.items()):
        torch.manual_seed(seed)
        config = LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS)
        model = get_peft_model(load_base(folder / "base"), config)
        for key, weight in model.named_parameters():
            if "lora_B" in key:
                weight.data.normal_(std=size)
        model.save_pretrained(folder / name)
    return folder


@pytest.fixture
def adapted(folder):
    """Returns a base with an adapter, whose layers' scale is what a function makes of it."""

    def load(name="right", scale=lambda layer, old: old):
        model = PeftModel.from_pretrained(load_base(folder / "base"), folder / name)
        for key, layer in model.named_modules():
            if isinstance(layer, LoraLayer):
                layer.scaling["default"] = scale(key, layer.scaling["default"])
        return model

    return load


@pytest.fixture
def probe(folder, capsys):
    """Runs the command on an endpoint; returns its status, and the JSON or the line of an error."""

    def run(endpoint, *words, adapter="right"):
        with served(endpoint):
            capsys.readouterr()
            status = main([endpoint.url, "--adapter", str(folder / adapter), *words])
        out, err = capsys.readouterr()
        return status, json.loads(out) if out else err

    return run


def endpoint_of(folder, model, **options):
    return Endpoint({"base": load_base(folder / "base"), "lora": model}, **options)


def test_an_adapter_that_is_served_is_said_to_be(folder, adapted, probe):
    status, said = probe(endpoint_of(folder, adapted()))
    assert status == 0 and said["verdict"] == "served", said
    assert said["distance_to_adapter"] < 1e-4 < said["distance_to_base"]
    assert said["canary"] == pytest.approx(1, abs=1e-3)
    assert said["modules_too_small_to_tell"] == []
    assert said["sampling_difference"] < 1e-4
    assert 0 < said["kept_in_bfloat16"] <= 1.1


FAULTS = {
    "the base": (lambda key, old: 0.0, "without the adapter"),
    "alpha is ignored": (lambda key, old: 1.0, "scale is wrong: 0.5 times"),
    "twice the scale": (lambda key, old: 2 * old, "scale is wrong: 2 times"),
    "one module": (lambda key, old: old * ("up_proj" not in key), "weights of up_proj are ignored"),
    "half of the modules": (
        lambda key, old: old * ("mlp" not in key),
        "weights of down_proj, up_proj are ignored",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("noise", [0.0, pytest.param(0.01, marks=pytest.mark.slow)])
def test_what_is_served_instead_is_named(folder, adapted, probe, fault, noise):
    scale, reason = FAULTS[fault]
    status, said = probe(endpoint_of(folder, adapted(scale=scale), noise=noise))
    assert status == 3 and reason in said["reason"], said


def test_experts_whose_weights_are_ignored_are_named(tmp_path, capsys):
    tokenizer = AutoTokenizer.from_pretrained(save_qwen(tmp_path / "base"))
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "moe_intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    config = Qwen3MoeConfig(vocab_size=len(tokenizer), **shape, **heads, **experts)
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "base")
    lora = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "v_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )
    model = get_peft_model(load_base(tmp_path / "base"), lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.3)
    model.save_pretrained(tmp_path / "adapter")
    words = ["--adapter", str(tmp_path / "adapter")]
    for ignores, expected in ((False, ""), (True, "weights of experts are ignored")):
        for name, layer in model.named_modules():
            if ignores and isinstance(layer, LoraLayer) and "experts" in name:
                layer.scaling["default"] = 0.0
        with served(Endpoint({"base": load_base(tmp_path / "base"), "lora": model})) as endpoint:
            status = main([endpoint.url, *words])
        said = json.loads(capsys.readouterr().out)
        assert (status, expected in said["reason"]) == (3 * ignores, True), said


def test_another_adapter_is_found_out(folder, adapted, probe):
    status, said = probe(endpoint_of(folder, adapted("wrong")))
    assert status == 3 and "another adapter or another model" in said["reason"], said


def test_another_base_is_found_out(folder, adapted, probe):
    base = load_base(folder / "base")
    for weight in base.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    other = Endpoint({"base": base, "lora": adapted()})
    status, said = probe(other)
    assert status == 3 and "its base is" in said["reason"], said


def test_another_model_is_found_out_even_by_a_fresh_adapter(folder, adapted, probe):
    status, said = probe(endpoint_of(folder, adapted("wrong")), adapter="fresh")
    assert status == 3 and "another adapter or another model" in said["reason"], said


def test_numbers_that_are_none_are_no_answer(folder, adapted, probe):
    status, said = probe(endpoint_of(folder, adapted(), gives_nan=True))
    assert status == 4 and "log-probabilities that are none" in said["reason"]


def test_ignored_modules_are_found_though_their_effects_overlap():
    """With effects that add up before a bend, leaving out one after the other finds few of them."""
    modules, num_found = [f"module{number}" for number in range(6)], 0
    for seed in range(10):
        effects = np.random.default_rng(seed).normal(1.0, 1.0, (6, 40))

        def say(factor, without, effects=effects):
            kept = [name not in without for name in modules]
            return np.tanh(factor * (effects * np.array(kept)[:, None]).sum(axis=0))

        for ignored in map(frozenset, combinations(modules, 3)):
            num_found += find_ignored(say(1.0, ignored), say, modules) == ignored
    assert num_found >= 195  # of 200; one after the other finds 150


def test_an_effect_on_few_tokens_is_missed_by_no_mean():
    rng = np.random.default_rng(0)
    for share, size in ((0.05, 0.12), (0.1, 0.07)):
        effect = size * (rng.random(170) < share)
        base = rng.normal(scale=0.01, size=170) - 2.0
        given = base + rng.normal(scale=0.01, size=170)
        verdict = judge(
            given,
            base,
            lambda factor, without, base=base, effect=effect: (
                base + factor * effect if not without else base
            ),
            ["q_proj"],
            (),
            0.01,
        )
        assert verdict.answer != Served.YES, verdict


ODD = {
    "no list": {"token_logprobs": 5},
    "too few": {"token_logprobs": [None, -1.0]},
    "texts": {"token_logprobs": "abc"},
    "huge": {"token_logprobs": [None, *[10**400] * 31]},
    "a number more": {"token_logprobs": [None, *[-1.0] * 40], "tokens": 5},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_answers_are_a_line(folder, adapted, probe, name):
    class Odd(Endpoint):
        def complete(self, body):
            return {"choices": [{"logprobs": ODD[name]}]}

    status, said = probe(Odd({"base": load_base(folder / "base"), "lora": adapted()}))
    assert status == 4 and said["verdict"] == "cannot tell", said


def test_sampling_from_the_base_is_found_out(folder, adapted, probe):
    status, said = probe(endpoint_of(folder, adapted(), samples_with="base"))
    assert status == 3 and "samples from other weights" in said["reason"], said


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.001, 0.02])
def test_rounding_is_no_fault(folder, adapted, probe, noise, seed):
    torch.manual_seed(seed)
    status, said = probe(endpoint_of(folder, adapted(), noise=noise))
    assert status == 0, said


@pytest.mark.parametrize("name", ["small", "fresh"])
def test_an_adapter_that_changes_less_than_rounding_cannot_be_told(folder, adapted, probe, name):
    status, said = probe(endpoint_of(folder, adapted(name), noise=0.01), adapter=name)
    assert status == 4 and "--canary" in said["reason"], said


@pytest.mark.slow
def test_a_canary_tells_what_a_fresh_adapter_cannot(folder, adapted, probe):
    endpoint = endpoint_of(folder, adapted("fresh"), noise=0.01)
    status, said = probe(endpoint, "--canary", str(folder / "canary"), adapter="fresh")
    assert status == 0 and said["modules_too_small_to_tell"] == [], said
    assert list(endpoint.models) == ["base", "lora"]  # the server has forgotten it


def test_a_larger_canary_is_the_same_with_a_larger_change(folder, tmp_path):
    base = str(folder / "base")
    config = LoraConfig(r=2, target_modules=["q_proj", "up_proj"], use_dora=True)
    get_peft_model(load_base(base), config).save_pretrained(tmp_path / "dora")
    for name, factor in (("one", 1.0), ("five", 5.0)):
        write_canary(tmp_path / "dora", tmp_path / name, factor)
    enlarged, larger = References(tmp_path / "one", base), References(tmp_path / "five", base)
    assert not np.allclose(enlarged.say(), larger.say(), atol=1e-4)
    enlarged.enlarge(5.0)
    assert np.allclose(enlarged.say(), larger.say(), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"gives_echo": False}, "log-probabilities of a prompt's tokens")],
)
def test_an_endpoint_that_says_too_little_cannot_be_told(folder, adapted, probe, options, reason):
    status, said = probe(endpoint_of(folder, adapted(), **options))
    assert status == 4 and reason in said["reason"]


@pytest.mark.parametrize("tokens", [5, None, "abc", [1], ["token_id:" + "9" * 30], []])
def test_odd_tokens_leave_sampling_out(folder, adapted, probe, tokens):
    class Odd(Endpoint):
        def complete(self, body):
            answer = super().complete(body)
            if not body.get("echo"):
                answer["choices"][0]["logprobs"]["tokens"] = tokens
            return answer

    odd = Odd({"base": load_base(folder / "base"), "lora": adapted()})
    status, said = probe(odd)
    assert status == 0 and said["sampling_difference"] is None


def test_tokens_without_numbers_leave_sampling_out(folder, adapted, probe):
    status, said = probe(endpoint_of(folder, adapted(), numbers_tokens=False))
    assert status == 0 and said["sampling_difference"] is None


def test_wrong_input_is_a_line_that_names_what_to_do(folder, adapted, probe, capsys):
    several = Endpoint({"base": load_base(folder / "base"), "a": adapted(), "b": adapted()})
    names = "error: name the adapter's model, by --model, of base, a, b, got "
    assert probe(several) == (2, f"{names}None\n")
    assert probe(several, "--model", "c") == (2, f"{names}c\n")
    assert probe(several, "--model", "b")[0] == 0
    assert main(["nowhere", "--adapter", str(folder / "right")]) == 2
    assert "the endpoint must be a URL such as" in capsys.readouterr().err
    assert main(["http://127.0.0.1:9/v1", "--adapter", str(folder)]) == 2
    assert "is no adapter" in capsys.readouterr().err


def test_a_key_is_sent_and_its_lack_is_said(folder, adapted, probe, monkeypatch):
    locked = endpoint_of(folder, adapted(), key="secret")
    status, said = probe(locked)
    assert status == 1 and "401" in said and "OPENAI_API_KEY" in said
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert probe(locked)[0] == 0
    for key in ("secret\r", "ключ"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        status, said = probe(locked)
        assert status == 2 and key not in said and "OPENAI_API_KEY has characters" in said


def test_servers_that_do_not_answer_end_the_command(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        words = ["--adapter", str(folder / "right"), "--timeout", "0.3"]
        assert main([f"http://127.0.0.1:{port}/v1", *words]) == 1
    assert "does not answer: timed out" in capsys.readouterr().err
    assert main([f"http://127.0.0.1:{port}/v1", *words]) == 1
    assert "Is the server running?" in capsys.readouterr().err
