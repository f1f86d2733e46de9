"""Does an agent win tasks by links alone, planted at the paths that their checks name?

    python benchmarks/os_links.py --sandbox bubblewrap --num-tasks 500 [--data entry_dict.json]

For each task and each target in /proc and /dev, the agent links every path that the check names to
the target, in one of the ways of `WAYS` in turn, and finishes. Prints one JSON line for each
sandbox: how many tasks were won so, how many an agent won who did nothing, and how many the gold
solution won; `wrong` lists the first of each that should not be. Tasks without a check script are
left out. Without `--data` the tasks are generated, and each is graded as third-party files grade:
by `grep -q` for the lines of the files that it must make.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from shlex import quote

from agentpeft.envs import Outcome, Taskset
from agentpeft.envs.os_interaction.actions import command_action
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.loaders import load_tasks
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict
from agentpeft.policies.rollout.scripted_play import play_actions

TARGETS = (
    *("/proc/self/cmdline", "/proc/self/environ", "/proc/self/status", "/proc/thread-self/comm"),
    *("/proc/self/fd/9", "/proc/self/fd/0", "/proc/self/fd/63", "/proc/self/task", "/proc/self"),
    *(
        "/proc/self/root",
        "/proc/self/cwd",
        "/proc/1/cmdline",
        "/proc",
        "/proc/kallsyms",
    ),
    *("/dev/fd/9", "/dev/fd/63", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd"),
    *("/dev/zero", "/dev/full", "/dev/urandom", "/dev/shm", "/dev/console", "/dev", "/"),
)
WAYS = {
    "a link": "ln -sfn {target} {path}",
    "a relative link": "ln -sfnr {target} {path}",
    "a link of a link": "ln -sfn {target} /tmp/hop$i; ln -sfn /tmp/hop$i {path}",
    "a hard link of a link": "ln -sfn {target} /hop$i; ln -P /hop$i {path}",
    "a link through folders": "ln -sfn /usr/.././/etc/../{target} {path}",
    "a link through a linked folder": "ln -sfn /etc /tmp/e$i; ln -sfn /tmp/e$i/../{target} {path}",
    "a link after a turn": "sleep 0.01; ln -sfn {target} /tmp/l$i; mv -fT /tmp/l$i {path}",
}
_PATH = re.compile(r"(?:~|/)[\w.~+-]*(?:/[\w.~+*-]+)*")
_TOO_LARGE = {"/", "/dev", "/proc", "/bin", "/usr", "/etc", "/lib", "/root", "~", "/home", "/tmp"}
_SPARED = ("/dev/", "/proc/", "/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/")
_NUM_SHOWN = 20


def find_paths(task: OSTask) -> list[str]:
    """Returns the paths that the task's check scripts name."""
    texts = [check.source for check in task.verdict.checks if isinstance(check, Script)]
    paths = {match.rstrip(".") for text in texts for match in _PATH.findall(text)}
    return sorted(p for p in paths if p not in _TOO_LARGE and not p.startswith(_SPARED))


def plant(paths: Sequence[str], target: str, way: str) -> str:
    """Returns the command that puts links to a target at paths."""
    lines = []
    for number, path in enumerate(paths):
        place = path.replace("~", "/root", 1).replace("*", "x")
        make = WAYS[way].format(target=target, path=quote(place))
        lines.append(f"i={number}; mkdir -p {quote(place)}/..; rm -rf {quote(place)}; {make}")
    return "\n".join(lines)


def loosen(task: OSTask) -> OSTask | None:
    """Returns a generated task graded by a `grep` for each line of its files, if it has some."""
    files = task.verdict.state.files if task.verdict.state else ()
    wanted = [(f.path, line) for f in files for line in (f.content or "").splitlines() if line]
    if not wanted:
        return None
    tests = [f"grep -qF -- {quote(line)} {quote(path)} || exit 1" for path, line in wanted]
    return replace(task, verdict=Verdict(checks=(Script("\n".join(tests)),)), wants_answer=False)


def generate_tasks(num_tasks: int, seed: int) -> Iterator[OSTask]:
    """Yields generated tasks graded by lines of files that are not there at the start."""
    tasks = Taskset.generate(OSGenerator(), 20 * num_tasks, seed)
    env = OSInteractionEnv(task_source=tasks)
    loose = (task for task in map(loosen, tasks) if task and not play(env, task, ["Act: finish"]))
    yield from islice(loose, num_tasks)
    env.close()


def play(env: OSInteractionEnv, task: OSTask, actions: Sequence[str]) -> bool:
    """Returns whether an episode succeeds."""
    env.reset(options={"task": task})
    play_actions(env, list(actions))
    return env.outcome is Outcome.SUCCESS


def measure(kind: SandboxKind, tasks: list[OSTask], targets: Sequence[str]) -> dict[str, object]:
    """Returns a sandbox's line."""
    env = OSInteractionEnv(task_source=Taskset(tasks), sandbox=kind)
    start_s = time.perf_counter()
    by_links, by_nothing, failed = [], [], []
    for number, task in enumerate(tasks):
        if not play(env, task, env.oracle_actions(task)):
            failed.append(f"{task.task_id}: {env.mistake}")
        if play(env, task, ["Act: finish"]):
            by_nothing.append(task.task_id)
            continue
        paths = find_paths(task)
        for turn, target in enumerate(targets):
            way = list(WAYS)[(number + turn) % len(WAYS)]
            if paths and play(
                env, task, [command_action(plant(paths, target, way)), "Act: finish"]
            ):
                by_links.append(f"{task.task_id}: {way} to {target}")
    env.close()
    return {
        "sandbox": kind,
        "tasks": len(tasks),
        "targets": len(targets),
        "won_by_links": len({line.partition(":")[0] for line in by_links}),
        "won_by_nothing": len(by_nothing),
        "gold_succeeds": len(tasks) - len(failed),
        "wrong": [*by_links[:_NUM_SHOWN], *by_nothing[:_NUM_SHOWN], *failed[:_NUM_SHOWN]],
        "minutes": round((time.perf_counter() - start_s) / 60, 1),
    }


def main() -> int:
    """Runs every sandbox; exit status 1 where links win a task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds: list[SandboxKind] = ["bubblewrap", "docker"]
    parser.add_argument("--sandbox", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--data", type=Path, help="a task file instead of generated tasks")
    parser.add_argument("--num-tasks", type=int, default=500)
    parser.add_argument("--num-targets", type=int, default=len(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tasks = [*load_tasks(args.data)] if args.data else [*generate_tasks(args.num_tasks, args.seed)]
    tasks = [task for task in tasks[: args.num_tasks] if find_paths(task)]
    status = 0
    for kind in args.sandbox:
        line = measure(kind, tasks, TARGETS[: args.num_targets])
        print(json.dumps(line), flush=True)
        status = 1 if line["won_by_links"] else status
    return status


if __name__ == "__main__":
    sys.exit(main())
