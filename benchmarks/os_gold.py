"""Do gold solutions of OS-interaction succeed, and is anything left behind?

    python benchmarks/os_gold.py --sandbox bubblewrap docker --num-tasks 1000

Prints one JSON line per sandbox. Half of the tasks have one skill, half have three. Each is played
twice, by the oracle and by an agent that finishes at once, and `wrong` lists the ids of those where
the first fails or the second succeeds. Leftovers are counted between the hundredth episode and the
last with the environment open (`growth`: memory of this process and its children in MiB, open
descriptors, MiB of disk), and after `close` against the beginning (`left`: processes that are
children, mounts, control groups, containers with the suite's label). Disk, mounts, control groups
and containers are those of the machine: run it while nothing else does the like.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

from agentpeft.envs import Outcome, Taskset
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind
from agentpeft.envs.os_interaction.tasks import OSTask
from agentpeft.policies.rollout.scripted_play import play_actions

_NUM_WARM_UP = 100
_LABEL = "agentpeft.os_interaction"
_CGROUPS = "agentpeft-os-*"


def make_tasks(num_tasks: int, seed: int) -> list[OSTask]:
    """Returns the tasks to play."""
    half = num_tasks // 2
    combined = OSGenerator(skill_mode="all", num_skills=3)
    singles = Taskset.generate(OSGenerator(), num_tasks - half, seed)
    return [*singles, *(Taskset.generate(combined, half, seed) if half else ())]


def play(env: OSInteractionEnv, task: OSTask, actions: list[str]) -> bool:
    """Returns whether an episode succeeds."""
    env.reset(options={"task": task})
    play_actions(env, actions)
    return env.outcome is Outcome.SUCCESS


def descendants(pid: int) -> list[int]:
    """Returns a process's children and theirs, itself first."""
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found


def measure_growing() -> dict[str, float]:
    """Returns what may not grow while episodes are played."""
    memory_kib, num_descriptors = 0, 0
    for pid in descendants(os.getpid()):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            num_descriptors += len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (names only)
        except OSError:
            continue  # it has ended since
        lines = dict(line.split(":", 1) for line in status.splitlines())
        memory_kib += int(lines.get("VmRSS", "0 kB").split()[0])
    disk_mib = shutil.disk_usage("/").used / 2**20
    return {"memory_mib": memory_kib / 1024, "descriptors": num_descriptors, "disk_mib": disk_mib}


def measure_left() -> dict[str, int]:
    """Returns what may not be there any more after `close`."""
    groups = Path("/sys/fs/cgroup")
    containers = ""
    if shutil.which("docker"):
        command = ["docker", "ps", "--all", "--quiet", "--filter", f"label={_LABEL}"]
        containers = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {
        "processes": len(descendants(os.getpid())) - 1,
        "mounts": Path("/proc/self/mountinfo").read_text().count("\n"),
        "cgroups": sum(1 for _ in groups.glob(f"**/{_CGROUPS}")),
        "containers": len(containers.split()),
    }


def measure(kind: SandboxKind, num_tasks: int, seed: int) -> dict[str, object]:
    """Returns a sandbox's line."""
    tasks = make_tasks(num_tasks, seed)
    left_before, before = measure_left(), measure_growing()
    env = OSInteractionEnv(task_source=Taskset(tasks), sandbox=kind)
    failed, lucky = [], []
    start_s = time.perf_counter()
    for number, task in enumerate(tasks, start=1):
        if not play(env, task, list(env.oracle_actions(task))):
            failed.append(f"{task.task_id}: {env.mistake}")
        if play(env, task, ["Act: finish"]):
            lucky.append(task.task_id)
        if number == _NUM_WARM_UP:
            before = measure_growing()
    elapsed_s = time.perf_counter() - start_s
    after = measure_growing()
    env.close()
    left = measure_left()
    return {
        "sandbox": kind,
        "tasks": num_tasks,
        "gold_succeeds": num_tasks - len(failed),
        "nothing_succeeds": len(lucky),
        "wrong": [*failed, *lucky],
        "episodes_per_s": round(2 * num_tasks / elapsed_s, 1),
        "growth": {name: round(after[name] - before[name], 1) for name in after},
        "left": {name: left[name] - left_before[name] for name in left},
    }


def main() -> int:
    """Runs every sandbox; exit status 1 where fewer than 99.5 % succeed, or nothing does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = [kind for kind in get_args(SandboxKind) if kind != "auto"]
    parser.add_argument("--sandbox", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--num-tasks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    status = 0
    for kind in args.sandbox:
        line = measure(kind, args.num_tasks, args.seed)
        print(json.dumps(line), flush=True)
        is_good = line["gold_succeeds"] >= 0.995 * args.num_tasks and not line["nothing_succeeds"]  # type: ignore[operator]
        status = status if is_good else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
