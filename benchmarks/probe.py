"""Does `agentpeft probe` name what vLLM's own server serves?

    python benchmarks/probe.py --output benchmarks/results/probe.jsonl

One server on CPUs has the built-in model and 80 LoRA adapters on it. They differ in rank, alpha,
which layers they are of, size and random numbers, by their seed. Each is probed on six texts that
its seed draws from the documentation. 50 are served rightly. Of the first ten, four other things
are served under another name: an adapter of other numbers, the base, the adapter at another alpha,
and without half of its kinds of layers. A line for each probe, and one with the counts, and with
the seconds of the command itself.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "launch")]

from vllm_server import vllm_servers  # noqa: E402

from agentpeft.apps.probe.completions import Completions, find_models  # noqa: E402
from agentpeft.apps.probe.probing import probe_adapter  # noqa: E402
from agentpeft.apps.probe.references import References  # noqa: E402
from agentpeft.policies.delivery.version import ADAPTER_CONFIG, ADAPTER_WEIGHTS  # noqa: E402
from agentpeft.policies.messages import Ids  # noqa: E402
from agentpeft.policies.models.load import load_base  # noqa: E402
from agentpeft.policies.settings.config import Settings  # noqa: E402

KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NUM_FAULTY = 10
MAX_TOKENS = 32
TIMEOUT_S = 600.0


def make_adapter(base: str, folder: Path, seed: int) -> None:
    """Writes an adapter, all of whose choices follow from a seed."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(KINDS, rng.integers(2, len(KINDS) + 1), replace=False)
    rank = int(rng.choice([2, 4, 8, 16]))
    alpha = rank * float(rng.choice([0.5, 2.0, 4.0]))
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=kinds.tolist())
    torch.manual_seed(seed)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    size = rng.uniform(0.03, 0.3)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=size)
    model.save_pretrained(folder)


def spoil(adapter: Path, folder: Path, fault: str, seed: int) -> str:
    """Writes what is served in place of an adapter, and returns what a probe should say of it."""
    rng = np.random.default_rng(1000 + seed)
    shutil.copytree(adapter, folder)
    settings = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))
    weights = load_file(folder / ADAPTER_WEIGHTS)
    if fault == "alpha":
        factor = float(rng.choice([0.5, 2.0]))
        settings["lora_alpha"] *= factor
        (folder / ADAPTER_CONFIG).write_text(json.dumps(settings), "utf-8")
        return f"scale is wrong: {factor:g} times"
    if fault == "half":
        kinds = settings["target_modules"]
        ignored = sorted(rng.choice(kinds, len(kinds) // 2, replace=False))
        changed = {n: w * (not any(f".{k}." in n for k in ignored)) for n, w in weights.items()}
        save_file(changed, folder / ADAPTER_WEIGHTS)
        return f"weights of {', '.join(ignored)} are ignored"
    torch.manual_seed(1000 + seed)
    drawn = {n: torch.randn_like(w) * w.std() for n, w in weights.items()}
    save_file(drawn, folder / ADAPTER_WEIGHTS)
    return "another adapter or another model answers"


def draw_texts(seed: int, tokenizer: PreTrainedTokenizerBase) -> list[Ids]:
    """Returns the first tokens of six lines of the documentation."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines()]
    long = [line for line in lines if len(line) > 80]
    chosen = np.random.default_rng(seed).choice(len(long), 6, replace=False)
    return [np.array(tokenizer(long[n])["input_ids"][:MAX_TOKENS]) for n in chosen]


def run_probe(url: str, adapter: Path, name: str, sequences: Sequence[Ids]) -> dict[str, object]:
    """Probes a served model on token sequences."""
    references = References(adapter)
    references.sequences = tuple(sequences)
    start_s = time.perf_counter()
    judgement = probe_adapter(
        Completions(url, name, TIMEOUT_S), references, find_models(url, TIMEOUT_S)
    )
    seconds = round(time.perf_counter() - start_s, 2)
    said = {"answer": judgement.answer, "reason": judgement.reason, "seconds": seconds}
    return said | {n: judgement.figures.get(n) for n in ("effect", "limit", "distance_to_adapter")}


def main() -> None:
    """Serves, probes and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-right", type=int, default=50)
    parser.add_argument("--output", type=Path, default=Path("/dev/stdout"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm_start = {"num_steps": 150}
    loaded = load_base(Settings(tiny={"hidden_size": 64}, warm_start=warm_start, num_threads=1))
    base = loaded.name
    with TemporaryDirectory() as place, args.output.open("w", encoding="utf-8") as output:
        folders, expected = {}, {}
        for seed in range(args.num_right):
            folders[f"right-{seed}"] = folder = Path(place, f"right-{seed}")
            make_adapter(base, folder, seed)
            expected[f"right-{seed}"] = "nats a token from the adapter"
            if seed >= NUM_FAULTY:
                continue
            expected[f"base-{seed}"] = "the base answers"
            for fault in ("other", "alpha", "half"):
                name = f"{fault}-{seed}"
                folders[name] = Path(place, name)
                expected[name] = spoil(folder, folders[name], fault, seed)
        loras = [f"{name}={folder}" for name, folder in folders.items()]
        options = ["--served-model-name", "base", "--enable-lora", "--max-lora-rank", "16"]
        options += ["--max-cpu-loras", str(len(loras)), "--lora-modules", *loras]
        counts: dict[str, list[int]] = {}
        with vllm_servers({base: options}, Path(place), num_tries=4000) as urls:
            url = urls[base]
            for name, reason in expected.items():
                fault, _, seed = name.partition("-")
                served = "base" if fault == "base" else name
                sequences = draw_texts(int(seed), loaded.tokenizer)
                said = run_probe(url, folders[f"right-{seed}"], served, sequences)
                status = "served" if fault == "right" else "not served"
                is_named = said["answer"] == status and reason in str(said["reason"])
                counts.setdefault(fault, []).append(is_named)
                line = {"served": fault, "seed": int(seed), "is_named": is_named, **said}
                print(json.dumps(line), file=output, flush=True)
            command = [sys.executable, "-m", "agentpeft.apps.probe.probe", url]
            start_s = time.perf_counter()
            adapter = ["--adapter", str(folders["right-0"]), "--model", "right-0", "--json"]
            subprocess.run([*command, *adapter], check=True, stdout=subprocess.DEVNULL)
            seconds = round(time.perf_counter() - start_s, 1)
        totals = {fault: f"{sum(named)} of {len(named)}" for fault, named in counts.items()}
        end = {"named": totals, "command_s": seconds, "load": os.getloadavg()[0]}
        print(json.dumps(end), file=output)


if __name__ == "__main__":
    main()
