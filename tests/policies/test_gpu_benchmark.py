"""`benchmarks/gpu.py` runs everywhere: here with tiny shapes, and without what learners lack."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentpeft.envs import Outcome
from agentpeft.policies.messages import EpisodeGroup, Trajectory

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys(["gymnasium", "sqlglot", "ray", "vllm", "trl"]))
script, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, script.rpartition("/")[0])
runpy.run_path(script, run_name="__main__")
"""
VLLM = [
    *("vllm fused", "vllm native", "delivery-vllm fused", "delivery-vllm native"),
    *("loop", "loop bare"),
]
FIGURES = [
    *("learner-0.5b", "learner-0.5b 512 tokens", "learner-7b", "learner-32b"),
    *("layouts shared", "layouts padded", "layouts trl"),
    *(f"layouts {layout} 512 tokens" for layout in ("shared", "padded", "trl")),
    *(f"gradients {layout} float32" for layout in ("shared", "padded")),
    *(f"gradients {layout} bfloat16" for layout in ("shared", "padded")),
    *(f"head {product} {way}" for product in ("logits", "sums") for way in ("float32", "tf32")),
    *("head logits bfloat16", "head sums bfloat16"),
    *("head whole float32 bonus=False", "head whole float32 bonus=True"),
    *("head whole 2^12 logits bonus=False", "head whole 2^12 logits bonus=True"),
    *("delivery fused", "delivery native", "delivery hash"),
    *("served 1 steps", *VLLM, "loop again"),
]
LEFT_OUT = {
    **dict.fromkeys(["head logits tf32", "head sums tf32"], "tf32"),
    **dict.fromkeys(["head logits bfloat16", "head sums bfloat16"], "bfloat16"),
    **dict.fromkeys(VLLM, "vllm"),
    "loop again": "vLLM",
    **dict.fromkeys(["layouts trl", "layouts trl 512 tokens"], "trl"),
}
"""What a CPU without these cannot measure, and the word that its reason begins with."""


def run(*options):
    command = [sys.executable, "-c", WITHOUT, str(BENCHMARKS / "gpu.py"), "--tiny", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.slow
def test_every_figure_is_measured_without_the_libraries_of_environments_and_clusters(tmp_path):
    file = tmp_path / "gpu.jsonl"
    rows = run("--results", str(file))
    by_name = {row["figure"]: row for row in rows}
    assert sorted(by_name) == sorted(FIGURES) and len(rows) == len(FIGURES)
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    reasons = {name: row["left_out"] for name, row in by_name.items() if "left_out" in row}
    assert {name: reason.split()[0] for name, reason in reasons.items()} == LEFT_OUT
    for row in rows:
        assert {"card", "torch", "transformers", "took_s"} <= row.keys() and row["is_tiny"]
    for name in ("learner-7b", "layouts padded"):
        assert by_name[name]["tokens_per_s"] > 0 and by_name[name]["share_of_peak"] > 0
        assert by_name[name]["bytes_per_token"] > 0 and by_name[name]["num_layers"] == 2
    errors = {name: row["error"] for name, row in by_name.items() if "error" in row}
    for name in ("head logits float32", "head sums float32", "gradients shared float32"):
        assert errors[name] < 1e-5
    assert 0 < errors["gradients shared bfloat16"] < 0.05
    assert errors["gradients padded float32"] == 0
    assert by_name["delivery native"]["served"] == 1
    assert 0.9 < by_name["delivery fused"]["served"] < 1.1
    again = run("--results", str(file), "learner-7b", "delivery", "layouts")
    left = ["layouts trl 512 tokens", "layouts trl"]  # it may be installed by now
    assert [row["figure"] for row in again] == left


@pytest.mark.slow
def test_a_part_that_has_no_time_left_says_what_is_left():
    assert run("delivery", "--minutes", "0") == [{"stopped": "delivery", "figures_left": 3}]


def test_a_figure_that_fails_is_a_line_and_is_measured_again(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu import measure, read_done

    def fail():
        raise RuntimeError("no such kernel")

    row = {"figure": "head", **measure(fail)}
    assert row == {"figure": "head", "failed": "RuntimeError: no such kernel"}
    results = tmp_path / "gpu.jsonl"
    rows = (row, {"figure": "loop", "model": "ours"}, {"figure": "delivery"})
    results.write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert read_done(results, {}, "ours") == {"loop", "delivery"}
    assert read_done(results, {}, "another") == {"delivery"}


@pytest.mark.long
@pytest.mark.slow
def test_the_loop_is_measured_to_its_end_and_not_again(vllm, tmp_path):
    file, folder = tmp_path / "gpu.jsonl", tmp_path / "loop"
    options = "loop", "--tiny", "--results", str(file), "--folder", str(folder)
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    loop, again, bare = map(json.loads, done.stdout.splitlines())
    starts = ("ray_s", "learner_s", "vllm_imported_s", "env_runner_s", "first_sample_s")
    assert 0 < loop["ray_s"] < min(loop[name] for name in starts[1:])
    assert max(loop[name] for name in starts) == loop["first_sample_s"] < loop["took_s"]
    assert loop["memory_mib"].keys() == {"engine", "env_runner", "learner"}
    assert loop["num_iterations"] == 1 and loop["sampled_tokens_per_s"] > 0
    assert not loop["had_vllm_cache"] and loop["mismatch_mean"] < 1e-4
    assert again["left_out"].startswith("vLLM")
    assert bare["num_requests"] == 8 and bare["sampled_tokens_per_s"] > 0
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [json.loads(line)["figure"] for line in done.stdout.splitlines()] == ["loop again"]


def test_the_operations_of_an_update_are_those_counted_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu_work import RANK, Shape, count_work

    shape = Shape(4, 6, 1, 2, 1, 2, 10, True, False)
    # Queries and outputs 4 x 4, keys and values 2 x 4, three of 6 x 4
    assert shape.layer_weights == 2 * 16 + 2 * 8 + 3 * 24 == 120
    adapter = RANK * (2 * (4 + 4) + 2 * (2 + 4) + 3 * (6 + 4))
    group = EpisodeGroup(0, "task", (), 0, tuple(make_episode(3, size) for size in (2, 1)))
    work = count_work(shape, 1, [group])
    assert work.tokens == (3 + 2) + (3 + 1)
    # Read are the prompt and the longer answer's first token, which see 1 + 2 + 3 + 4 tokens;
    # three tokens are sampled
    products = 4 * (2 * 120 + 3 * adapter) + 3 * 2 * 10 * 4 + 2 * 3 * 4 * 10
    assert work.operations == 2 * products


@pytest.mark.parametrize("name", ["0.5b", "7b"])
def test_the_table_of_known_shapes_is_near_what_a_gpu_took(monkeypatch, name):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from known_shapes import describe

    rows = map(json.loads, (BENCHMARKS / "results" / "gpu.jsonl").read_text().splitlines())
    (measured,) = (
        row for row in rows if row["card"] == "NVIDIA H200" and row["figure"] == f"learner-{name}"
    )
    line = describe(name)
    ratio = 1000 * line["activations_kb_per_token"] / measured["bytes_per_token"]
    assert 0.9 < ratio < 1.4, ratio
    assert 0.9 < line["update_s_h100"] / measured["update_s"] < 1.1


def make_episode(num_prompt_tokens, num_tokens):
    prompt, tokens = np.arange(num_prompt_tokens), np.arange(num_tokens)
    mask, logprobs = np.ones(num_tokens, bool), np.zeros(num_tokens, np.float32)
    return Trajectory(prompt, tokens, mask, logprobs, (num_tokens,), (1.0,), Outcome.SUCCESS)
