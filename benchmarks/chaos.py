"""Does a run survive what may happen to its parts, its files and its command line?

    python benchmarks/chaos.py scenarios --seeds 0-199
    python benchmarks/chaos.py damages --seeds 0-999
    python benchmarks/chaos.py inputs

`scenarios` plays random faults (`tests/chaos/scenario.py`) one after the other, and goes on after
the last one that is in the file of results, so it can be stopped at any time. `damages` resumes
damaged copies of a run (`tests/chaos/damage.py`). `inputs` launches the command with 200 wrong
command lines. One JSON line each on standard output and in `--results`; of damages one line for
each kind and result. Exit status 1 where an invariant did not hold. Full disks need root.
On two idle cores a scenario takes 10 to 60 seconds, 1,000 damages two minutes, an input three
seconds.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "launch"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "chaos"))
from damage import DamagedRuns
from scenario import draw, play
from test_bad_input import TINY, WRONG

ROOT = Path(__file__).parents[1]
_MAX_INPUT_S = 10
_NUM_INPUTS = 200


def play_scenarios(seeds: range, results: Path) -> Iterator[str]:
    """Yields what each scenario came to that is not among the results yet."""
    done = set()
    if results.exists():
        done = {json.loads(line).get("seed") for line in results.read_text().splitlines()}
    for seed in seeds:
        if seed not in done:
            yield play(draw(seed)).as_json()


def try_damages(seeds: range) -> Iterator[str]:
    """Yields how often each kind of damage was refused, or went on as if nothing had been."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AGENTPEFT_CACHE"] = str(Path(folder) / "cache")
        runs = DamagedRuns(Path(folder))
        outcomes = [runs.try_damage(seed) for seed in seeds]
    counts = collections.Counter(
        (each.damage, "went on" if each.result == "went on" else "refused") for each in outcomes
    )
    violations = [vars(each) for each in outcomes if each.violation]
    for (damage, result), number in sorted(counts.items()):
        line = {"damage": damage, "result": result, "number": number}
        yield json.dumps(line | {"seeds": f"{seeds.start}-{seeds.stop - 1}"})
    yield json.dumps({"damages": len(outcomes), "violations": violations})


def try_inputs() -> Iterator[str]:
    """Yields what the command says to wrong command lines, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tiny.toml").write_text(TINY, encoding="utf-8")
        step = len(WRONG) // _NUM_INPUTS
        for name, value in WRONG[::step][:_NUM_INPUTS]:
            command = [sys.executable, str(ROOT / "launch" / "train.py"), "tiny.toml"]
            start_s = time.monotonic()
            ended = subprocess.run(
                [*command, f"{name}={value}"],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            seconds, said = time.monotonic() - start_s, ended.stderr.splitlines()
            is_right = ended.returncode == 2 and len(said) == 1 and said[0].startswith("error: ")
            violations = [] if is_right else [f"exit status {ended.returncode}: {said[-3:]}"]
            if seconds > _MAX_INPUT_S:
                violations.append(f"takes over {_MAX_INPUT_S} s")
            line = {"input": f"{name}={value}", "message": said[-1:], "seconds": round(seconds, 1)}
            yield json.dumps(line | {"violations": violations})


def main() -> None:
    """Plays what the command line names."""
    parser = argparse.ArgumentParser(description="Random faults, damages and wrong inputs.")
    parser.add_argument("what", choices=["scenarios", "damages", "inputs"])
    parser.add_argument("--seeds", default="0-199", help="first and last")
    parser.add_argument("--results", type=Path, help="a JSONL file that is appended to")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    results = options.results or ROOT / "benchmarks" / "results" / f"chaos-{options.what}.jsonl"
    lines = {
        "scenarios": lambda: play_scenarios(range(first, last + 1), results),
        "damages": lambda: try_damages(range(first, last + 1)),
        "inputs": try_inputs,
    }[options.what]()
    num_violations = 0
    for line in lines:
        print(line, flush=True)
        with results.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        num_violations += len(json.loads(line).get("violations", []))
    sys.exit(1 if num_violations else 0)


if __name__ == "__main__":
    main()
