"""Real vLLM servers play as the same weights do here: base, adapter and merged model."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tiny_run import make_run
from transformers import AutoModelForCausalLM
from vllm_server import vllm_servers

from agentpeft.apps.probe import canary, probe
from agentpeft.apps.probe.completions import find_models
from agentpeft.envs import Outcome
from agentpeft.launch import evaluate, merge
from agentpeft.launch.run.run_folder import find_adapter
from agentpeft.policies.delivery.version import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from agentpeft.policies.learning.options.endpoint_teacher import EndpointTeacher
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import Trajectory
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.open_adapters import open_adapter
from agentpeft.policies.settings.config import Settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LEARNT = ["tiny.hidden_size=64", "warm_start.num_steps=150", "training.lr=1e-3"]
"""Attention heads as wide as vLLM takes on CPUs; some answers are right, others wrong."""
IDS = list(range(4, 40))
PARSE = """
import sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
print(make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:]).lora_modules)
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield make_run(tmp_path_factory.mktemp("run"), LEARNT)


@pytest.fixture(scope="module")
def models(run_dir, tmp_path_factory):
    """Folders by the names under which they are served."""
    adapter, merged = find_adapter(run_dir), tmp_path_factory.mktemp("merged") / "model"
    assert merge.main([str(run_dir), "--output", str(merged)]) == 0
    base = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    return {"plain": base["base_model_name_or_path"], "trained": adapter, "whole": merged}


@pytest.fixture(scope="module")
def wrong(models, tmp_path_factory):
    """Folders of adapters that are not the trained one, by what is wrong with them."""
    folders = {}
    for name in ("other", "alpha", "half"):
        folders[name] = tmp_path_factory.mktemp("wrong") / name
        shutil.copytree(models["trained"], folders[name])
    settings = json.loads((folders["alpha"] / ADAPTER_CONFIG).read_text("utf-8"))
    settings["lora_alpha"] *= 2
    (folders["alpha"] / ADAPTER_CONFIG).write_text(json.dumps(settings), "utf-8")
    weights = load_file(models["trained"] / ADAPTER_WEIGHTS)
    for name, weight in weights.items():
        weights[name] = weight * ("q_proj" not in name)
    save_file(weights, folders["half"] / ADAPTER_WEIGHTS)
    for name, weight in weights.items():
        weights[name] = torch.randn_like(weight) * 0.1
    save_file(weights, folders["other"] / ADAPTER_WEIGHTS)
    return folders


@pytest.fixture(scope="module")
def url(vllm, models, wrong, tmp_path_factory):
    """Of a server of the base, and of the adapter over it, and of wrong ones."""
    plain = str(models["plain"])
    names = {"trained": models["trained"], **wrong}
    lora = ["--enable-lora", "--lora-modules", *(f"{n}={path}" for n, path in names.items())]
    options = {plain: ["--served-model-name", "plain", *lora]}
    with vllm_servers(options, tmp_path_factory.mktemp("servers")) as found:
        yield found[plain]


@pytest.fixture(scope="module")
def urls(url, models, tmp_path_factory):
    """The servers' URLs by the names of what they serve, the merged model's too."""
    whole = str(models["whole"])
    options = {whole: ["--served-model-name", "whole"]}
    with vllm_servers(options, tmp_path_factory.mktemp("servers")) as found:
        yield {"plain": url, "trained": url, "whole": found[whole]}


@pytest.fixture(scope="module")
def played(run_dir, urls, tmp_path_factory):
    """Positions, outcomes and messages of all episodes, by player."""
    output = tmp_path_factory.mktemp("played")
    for name, served_at in urls.items():
        words = [str(run_dir), "--modes", "both", "--policy", "base", "--output", str(output)]
        assert evaluate.main([*words, "--endpoint", served_at, "--endpoint-model", name]) == 0
    texts = {path.stem: path.read_text("utf-8") for path in (output / "sessions").iterdir()}
    rows = {name: map(json.loads, text.splitlines()) for name, text in texts.items()}
    wanted = ("group_id", "outcome", "messages")
    return {name: sorted([row[key] for key in wanted] for row in rows[name]) for name in rows}


def success_rate(episodes):
    return sum(outcome == "success" for _, outcome, _ in episodes) / len(episodes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("served", "here"),
    [
        ("plain", "base"),
        ("trained", "checkpoint-000002"),
        ("whole", "checkpoint-000002-merged"),
    ],
)
def test_a_served_model_plays_as_it_does_here(played, served, here):
    assert len(played[served]) == 20
    assert success_rate(played[served]) == success_rate(played[here]) > 0
    assert played[served] == played[here]


@pytest.mark.long
def test_base_and_adapter_are_served_apart(played):
    assert played["trained"] == played["whole"] != played["plain"]
    assert 0 < success_rate(played["plain"]) < 1


def ask(url, body):
    data = json.dumps(body | {"prompt": IDS, "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"{url}/completions", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]


@torch.no_grad()
def compute_logprobs(models, name):
    """Returns plain transformers' log-probabilities of IDS, less the first."""
    folder = models["plain"] if name == "trained" else models[name]
    model = AutoModelForCausalLM.from_pretrained(folder)
    if name == "trained":
        model = PeftModel.from_pretrained(model, models["trained"])
    rows = model(torch.tensor([IDS])).logits[0, :-1].log_softmax(-1)
    return rows.gather(-1, torch.tensor(IDS[1:])[:, None])[:, 0]


@pytest.mark.parametrize("name", ["plain", "trained"])
def test_served_probabilities_are_those_of_plain_transformers(url, models, name):
    found = ask(url, {"model": name, "prompt_logprobs": 0})["prompt_logprobs"][1:]
    served = [row[str(token)]["logprob"] for row, token in zip(found, IDS[1:], strict=True)]
    assert torch.allclose(torch.tensor(served), compute_logprobs(models, name), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("trained", 0, "nats a token from the adapter"),
        ("plain", 3, "the base answers"),
        ("other", 3, "another adapter or another model answers"),
        ("alpha", 3, "scale is wrong: 2 times"),
        ("half", 3, "weights of q_proj are ignored"),
    ],
)
def test_a_probe_says_what_is_served(url, models, capsys, name, status, reason):
    words = [url, "--adapter", str(models["trained"]), "--model", name]
    assert probe.main(words) == status
    said = json.loads(capsys.readouterr().out)
    assert reason in said["reason"]
    assert status or said["sampling_difference"] < 1e-3


def test_a_probe_has_a_canary_loaded(url, models, tmp_path, capsys):
    words = [url, "--adapter", str(models["trained"]), "--canary", str(tmp_path / "canary")]
    assert probe.main(words) == 0
    assert json.loads(capsys.readouterr().out)["modules_too_small_to_tell"] == []
    assert canary.NAME not in find_models(url, 9.0)


@pytest.mark.long
@pytest.mark.parametrize("page", ["merge", "evaluate"])
def test_the_pages_commands_have_vllms_own_options(vllm, page):
    text = (ROOT / "docs" / "training" / f"{page}.md").read_text("utf-8")
    commands = re.findall(r"^vllm serve (.+)$", text, re.M)
    assert commands
    for command in commands:
        model, *options = command.split()
        words = [sys.executable, "-c", PARSE, "--model", model, *options]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert ("trained" in done.stdout) == ("--lora-modules" in options)


def test_a_served_teacher_says_of_tokens_what_it_computes_here(models, url):
    ids, mask = torch.tensor(IDS), np.arange(5, len(IDS)) % 3 > 0
    trajectory = Trajectory(
        prompt_ids=ids[:5].numpy(), token_ids=ids[5:].numpy(), loss_mask=mask,
        sampling_logprobs=np.zeros(len(mask), np.float32), turn_ends=(len(mask),),
        turn_rewards=(0.0,), outcome=Outcome.FAILURE,
    )  # fmt: skip
    for name in ("plain", "trained"):
        (scores,) = EndpointTeacher(f"{url}#{name}").score([Sample(0, 0, trajectory)])
        base = load_base(Settings(model={"name": str(models[name])}))
        network = base.model if base.adapter_path is None else open_adapter(base, base.adapter_path)
        with torch.no_grad():
            logprobs = network(input_ids=ids[None]).logits[0].log_softmax(-1)
        expected = logprobs[:-1].gather(1, ids[1:, None])[4:, 0].numpy()
        assert np.allclose(scores.logprobs, expected[mask], atol=1e-4)
