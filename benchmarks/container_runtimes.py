"""Could crun or runc be what holds an episode of OS-interaction, in place of our own runtime?

    python benchmarks/container_runtimes.py speed [--sides crun] [--rounds 7] [--output FILE]
    python benchmarks/container_runtimes.py attacks --side crun [--output FILE]
    python benchmarks/container_runtimes.py inotify --side crun

`runtime_sandbox.py` is a sandbox by either, with the same prepared files, limits and walls as far
as an OCI runtime has them, and nothing of ours that such a runtime brings itself.

`speed`: the same generated tasks with a perfect scripted agent (set-up, gold, grading), by every
side in turn, `--rounds` times, forwards and backwards. Prints one JSON line a round, and a last
one with the ratio of theirs to ours within a round: of episodes a second, and of episodes a second
of processor time, which other work on the machine disturbs less (the kernel's own threads, which
take namespaces and control groups down, are not in it).

`attacks`: every attack by a shell of `tests/attacks/` on one side. Prints one JSON line with those
that do not end as they must. `inotify`: whether the host's root has inotify instances left while an
episode holds all that it gets. `--side ours` is the suite's own sandbox, for comparison.

`speed` takes five minutes, `attacks` ten a side. All need root, bubblewrap, crun and runc.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, get_args

from os_throughput import Play, make_plays, play_gold
from runtime_sandbox import Runtime, RuntimeEnv, Way

from agentpeft.envs import EnvFault
from agentpeft.envs.os_interaction.env import OSInteractionEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "attacks"))
from attack import Attack
from footprint import cpu_seconds
from games import COMMAND_TIMEOUT_S, make_shell_env
from host import Host, can_watch_files
from playing import Player
from table import ATTACKS

_OURS = "ours"
_SIDES: dict[str, tuple[Runtime, Way]] = {
    "crun": ("crun", "shell"),
    "crun_exec": ("crun", "exec"),
    "crun_bare": ("crun", "bare"),
    "runc": ("runc", "shell"),
    "runc_exec": ("runc", "exec"),
}
_MAX_SHOWN = 300
_HOLD_INOTIFY = """\
python3 -c 'import ctypes, time
libc = ctypes.CDLL(None)
held = [libc.inotify_init1(0) for _ in range(1000)]
time.sleep(20)' & sleep 1
"""


def measure_speed(
    sides: Sequence[str], num_rounds: int, num_episodes: int
) -> Iterator[dict[str, Any]]:
    """Yields each round's episodes per second, then the ratios to ours."""
    plays = make_plays("bubblewrap")
    rates: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        envs: dict[str, OSInteractionEnv] = {_OURS: OSInteractionEnv(sandbox="bubblewrap")}
        envs |= {name: RuntimeEnv(runtime_and_way=_SIDES[name]) for name in sides}
        for env in envs.values():
            stack.callback(env.close)
            play_gold(env, plays[0])  # not counted: starts the machinery
        turns = cycle(plays)
        for number in range(num_rounds):
            chosen = list(islice(turns, num_episodes))
            names = list(envs)[:: 1 if number % 2 else -1]
            measured = {name: _measure(envs[name], chosen) for name in names}
            for name, pair in measured.items():
                rates.setdefault(name, []).append(pair)
            yield {
                "round": number,
                "episodes_per_s": {name: round(pair[0], 2) for name, pair in measured.items()},
                "episodes_per_cpu_s": {name: round(pair[1], 2) for name, pair in measured.items()},
            }
    ours = rates[_OURS]
    yield {
        "rounds": num_rounds,
        "episodes_a_round": num_episodes,
        **{
            name: {
                "ratio": _spread([a[0] / b[0] for a, b in zip(rates[name], ours, strict=True)]),
                "cpu_ratio": _spread([a[1] / b[1] for a, b in zip(rates[name], ours, strict=True)]),
            }
            for name in sides
        },
    }


def _measure(env: OSInteractionEnv, plays: list[Play]) -> tuple[float, float]:
    """Returns episodes per second and per second of processor time."""
    start_s, start_cpu_s = time.perf_counter(), cpu_seconds()
    for play in plays:
        play_gold(env, play)
    seconds, num_cpu_s = time.perf_counter() - start_s, cpu_seconds() - start_cpu_s
    return len(plays) / seconds, len(plays) / num_cpu_s


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "smallest": round(min(values), 2),
        "largest": round(max(values), 2),
    }


def play_attacks(side: str) -> dict[str, Any]:
    """Plays all attacks by a shell on one side; returns those that did not end as they must."""
    host = Host()
    env = _make_attacked(side)
    player = Player(env, host, COMMAND_TIMEOUT_S, spare=(2, 2), default_task="state")
    broken: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for number, attack in enumerate(ATTACKS["shell"]):
        problems = _play(player, attack)
        if problems:  # once more, since others' work may have taken the time of it
            problems = _play(player, attack)
        if problems:
            broken[str(attack)] = [problem[:_MAX_SHOWN] for problem in problems]
            counts[attack.topic.name] += 1
            print(f"{number} {attack}: {broken[str(attack)]}", file=sys.stderr, flush=True)
    env.close()
    host.close()
    num_attacks = len(ATTACKS["shell"])
    return {
        "side": side,
        "attacks": num_attacks,
        "held": num_attacks - len(broken),
        "broken_by_class": dict(counts),
        "broken": broken,
    }


def hold_inotify(side: str) -> dict[str, Any]:
    """Tells whether this user has an inotify instance left while an episode holds what it gets.

    Not one of the suite's attacks, which end with their turn: docker cannot hold it.
    """
    env = _make_attacked(side)
    env.reset(options={"task": "state"})
    env.sandbox.run(_HOLD_INOTIFY, 10)
    is_left = can_watch_files()
    env.close()
    return {"side": side, "is_left": is_left}


def _make_attacked(side: str) -> OSInteractionEnv:
    if side == _OURS:
        return make_shell_env("bubblewrap")
    return make_shell_env("auto", partial(RuntimeEnv, runtime_and_way=_SIDES[side]))


def _play(player: Player, attack: Attack) -> list[str]:
    try:
        return player.play(attack).problems
    except EnvFault as fault:  # of `reset`: the attack before has broken what is used again
        return [f"the sandbox cannot be reset: {fault}"]


def _versions() -> dict[str, str]:
    found = {}
    for runtime in get_args(Runtime):
        printed = subprocess.run([runtime, "--version"], capture_output=True, text=True, check=True)
        found[runtime] = printed.stdout.split()[2]
    return found


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["speed", "attacks", "inotify"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--sides", nargs="+", choices=list(_SIDES), default=list(_SIDES))
    parser.add_argument("--side", choices=[_OURS, *_SIDES], default="crun")
    parser.add_argument("--output", type=Path, help="a file to append the lines to")
    options = parser.parse_args()
    if options.what == "speed":
        lines = measure_speed(options.sides, options.rounds, options.episodes)
    else:
        attack = play_attacks if options.what == "attacks" else hold_inotify
        lines = iter([attack(options.side)])
    for line in lines:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps(
            {"what": options.what, **line, "versions": _versions(), "measured_at": now}
        )
        print(text, flush=True)
        if options.output:
            with options.output.open("a") as file:
                file.write(f"{text}\n")


if __name__ == "__main__":
    main()
