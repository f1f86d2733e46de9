"""How many OS-interaction episodes a second, against a container each and an exec per turn?

    python benchmarks/os_throughput.py [--sandbox bubblewrap docker] [--num-envs 1] [--duration 10]

Prints one JSON line for the reference and one for each sandbox: episodes per second of the same
generated tasks with a perfect scripted agent (set-up, gold, grading; through `gymnasium.make`), the
ratio to the reference in the same run, and the milliseconds of a command in a live sandbox. What
the agent does is known before the clock starts (for an answer that a task does not state, the gold
script has run once). The reference is LifelongAgentBench's way, without its task logic: it starts a
container of the same image, runs set-up, gold and one check each by an exec of its own, and removes
the container.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import docker
import gymnasium

from agentpeft.envs import Taskset
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.sandboxes.images import DEFAULT_IMAGE
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind, make_sandbox
from agentpeft.envs.os_interaction.tasks import OSTask

_NUM_TASKS = 200
_NUM_COMMANDS = 300
_ENV_ID = "AgentPEFT/OSInteraction-v0"


@dataclass(frozen=True)
class Play:
    """A task, and what a perfect agent does in it."""

    task: OSTask
    actions: Sequence[str]


def make_plays(kind: SandboxKind) -> list[Play]:
    """Returns the tasks with their gold actions."""
    env = OSInteractionEnv(sandbox=kind)
    tasks = Taskset.generate(OSGenerator(num_skills=1), _NUM_TASKS, seed=0)
    plays = [Play(task, env.oracle_actions(task)) for task in tasks]
    env.close()
    return plays


def play_reference(client: docker.DockerClient, play: Play) -> None:
    """Plays an episode in a container of its own, with an exec for each step."""
    container = client.containers.run(
        DEFAULT_IMAGE, ["sleep", "infinity"], detach=True, network_mode="none"
    )
    try:
        scripts = [script for script in (play.task.setup, play.task.gold) if script is not None]
        for command in (*(script.to_command() for script in scripts), "test -e /etc/passwd"):
            container.exec_run(["bash", "-c", command])
    finally:
        container.remove(force=True)


def play_gold(env: OSInteractionEnv, play: Play) -> None:
    """Plays an episode with the oracle. Raises: RuntimeError where it does not succeed.

    It steps the environment itself: the reference has no loop of ours in its time either.
    """
    info = env.reset(options={"task": play.task})[1]
    for action in play.actions:
        info = env.step(action)[4]
    if not info["is_success"]:
        raise RuntimeError(f"the oracle fails at {play.task.task_id}: {info['outcome']}")


def measure(players: list[Callable[[Play], None]], plays: list[Play], duration_s: float) -> float:
    """Returns episodes per second of players that each play on a thread of their own."""
    turns = itertools.cycle(plays)
    for player in players:
        player(next(turns))
    start_s = time.perf_counter()

    def play(player: Callable[[Play], None]) -> int:
        num_episodes = 0
        while time.perf_counter() - start_s < duration_s:
            player(next(turns))
            num_episodes += 1
        return num_episodes

    with ThreadPoolExecutor(len(players)) as executor:
        num_episodes = sum(executor.map(play, players))
    return num_episodes / (time.perf_counter() - start_s)


def measure_sandbox(
    kind: SandboxKind, plays: list[Play], num_envs: int, duration_s: float
) -> float:
    """Returns episodes per second of one sandbox."""
    envs = [gymnasium.make(_ENV_ID, sandbox=kind).unwrapped for _ in range(num_envs)]
    players = []
    for env in envs:
        assert isinstance(env, OSInteractionEnv)
        players.append(lambda play, env=env: play_gold(env, play))
    rate = measure(players, plays, duration_s)
    for env in envs:
        env.close()
    return rate


def measure_command(kind: SandboxKind) -> list[float]:
    """Returns the milliseconds of each of many commands in one live sandbox."""
    sandbox = make_sandbox(kind)
    sandbox.reset()
    times_ms = []
    for number in range(_NUM_COMMANDS):
        start_s = time.perf_counter()
        sandbox.run(f"cd /tmp; echo {number} >f; ls", 10)
        times_ms.append((time.perf_counter() - start_s) * 1e3)
    sandbox.close()
    return times_ms


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandbox", nargs="+", default=["bubblewrap", "docker"])
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--duration", type=float, default=10.0)
    options = parser.parse_args()
    client = docker.from_env()
    plays = make_plays(options.sandbox[0])
    references = [lambda play: play_reference(client, play)] * options.num_envs
    reference = measure(references, plays, options.duration)
    line = {"num_envs": options.num_envs, "episodes_per_s": round(reference, 2)}
    print(json.dumps({"sandbox": "reference", **line}), flush=True)
    for kind in options.sandbox:
        rate = measure_sandbox(kind, plays, options.num_envs, options.duration)
        times_ms = measure_command(kind)
        line = {
            "sandbox": kind,
            "num_envs": options.num_envs,
            "episodes_per_s": round(rate, 2),
            "ratio": round(rate / reference, 1),
            "command_ms_median": round(statistics.median(times_ms), 2),
            "command_ms_p95": round(statistics.quantiles(times_ms, n=20)[-1], 2),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
