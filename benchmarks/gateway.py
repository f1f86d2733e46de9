"""What does a program of the user's cost a turn, and does it learn as our own loop does?

    python benchmarks/gateway.py overhead
    python benchmarks/gateway.py learning own_loop
    python benchmarks/gateway.py learning pool
    python benchmarks/gateway.py learning processes training.num_iterations=10

`overhead`: milliseconds a turn, of wall clock and of this process's CPU time, in 64 episodes of
DB-bench, 8 at once, whose model says one query always; by our own loop and by `server_agent.py`.
`learning`: `arithmetic_add` with 16 x 8 episodes an iteration, by our own loop, by two servers of
`server_agent.py`, or by processes of `curl_agent.sh`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path

from agentpeft.launch.cli import main as agentpeft
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings

EXAMPLES = Path(__file__).parents[1] / "examples" / "agents"
PORTS = ("9311", "9312")
URLS = [f"http://127.0.0.1:{port}/play" for port in PORTS]
AGENT = {"class": "agentpeft.apps.gateway.agent:Gateway", "url": URLS[:1]}
TASKS = ("arithmetic_add", "training.num_groups=16", "training.group_size=8")
LEARNERS = {
    "own_loop": ["train", *TASKS],
    "pool": ["gateway", *TASKS, *(word for url in URLS for word in ("--url", url))],
    "processes": ["gateway", *TASKS, "--command", f"sh {EXAMPLES}/curl_agent.sh"],
}


def measure_turns(agent: dict[str, object]) -> dict[str, float]:
    """Plays, and returns turns and milliseconds."""
    runners = {"agent": agent, "max_concurrent_episodes": 8, "max_new_tokens": 64}
    settings = Settings(environment={"id": "AgentPEFT/DBBench-v0"}, env_runners=runners)
    says = "Action: Operation\n```sql\nSELECT 1;\n```"
    player = make_player(settings, None, lambda *made: ScriptedEngine(made[-1], lambda *_: says))
    runner = EnvRunner(settings, player)
    runner.sample([GroupRequest(0, 8)])
    start, start_cpu = time.perf_counter(), time.process_time()
    _, report = runner.sample([GroupRequest(number, 8) for number in range(1, 9)])
    spent, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    runner.close()
    turns = sum(record.num_turns for record in report.records)
    return {"turns": turns, "ms": 1e3 * spent / turns, "cpu_ms": 1e3 * cpu / turns}


def measure_learning(words: list[str]) -> dict[str, object]:
    """Trains, and returns the rewards of the iterations and the summary."""
    printed, start_s = StringIO(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed):
        if agentpeft([*words, f"output.dir={folder}"]) != 0:
            sys.exit("the run failed")
    *lines, end = map(json.loads, printed.getvalue().splitlines())
    return {
        "rewards": [line["reward"] for line in lines if "reward" in line],
        "before": end["before"],
        "after": end["after"],
        "seconds": round(time.perf_counter() - start_s),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Starts the servers, measures, and prints a line."""
    question, *words = sys.argv[1:]
    command = [sys.executable, str(EXAMPLES / "server_agent.py")]
    with ExitStack() as servers:
        for port in PORTS:
            server = subprocess.Popen([*command, port], stderr=subprocess.DEVNULL)
            servers.callback(server.kill)
        if question == "overhead":
            times = {"own loop": measure_turns({}), "server": measure_turns(AGENT)}
            print(json.dumps(times | {"load": os.getloadavg()[0]}))
        else:
            player, *overrides = words
            learnt = measure_learning([*LEARNERS[player], *overrides])
            print(json.dumps({"played_by": player, **learnt}))


if __name__ == "__main__":
    main()
