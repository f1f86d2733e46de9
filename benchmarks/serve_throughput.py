"""How many episodes a second does one server play for many clients, beside none at all?

```sh
python benchmarks/serve_throughput.py                          # 64 sessions, three environments
python benchmarks/serve_throughput.py --envs AgentPEFT/Arithmetic-v0 --episodes 10000
```

A server is started on this machine, and one client process plays the oracle's episodes over so
many WebSockets at once, in OpenEnv's messages: `reset` with a seed, then each action. The same
episodes are played in this process first, in 16 threads where the environment's steps wait, and
where they do not, by a bare server too: `websockets` and nothing else, no limits, no threads. All
environments begin an episode before the clock does, so that sandboxes have been started. One JSON
line for each environment: episodes a second of both, their ratio, the processor time of an
episode here and in the server (which others on the machine change little; that of sandboxes is not
in it), the latency of a step as the client sees it, the server's memory before and after, how many
episodes failed here and there, and what the server still held once all clients had left.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import gymnasium
import numpy as np
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from agentpeft.envs import DataError, TextEnv

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = {
    "AgentPEFT/Arithmetic-v0": 4000,
    "AgentPEFT/DBBench-v0": 1500,
    "AgentPEFT/OSInteraction-v0": 200,
}
"""The number of episodes of each."""
MAX_THREADS = 16
"""Of the episodes in this process: more would not make two processors faster."""
Plan = list[tuple[int, list[str]]]


async def serve_bare(env_id: str) -> None:
    """Serves an environment as a program of thirty lines would."""

    async def play(socket: ServerConnection) -> None:
        env = gymnasium.make(env_id).unwrapped
        async for said in socket:
            message = json.loads(said)
            if message["type"] == "reset":
                (text, _), reward, is_over = env.reset(seed=message["data"]["seed"]), None, False
            else:
                text, reward, is_over, _, _ = env.step(message["data"]["text"])
            data = {"observation": {"text": text}, "reward": reward, "done": is_over}
            await socket.send(json.dumps({"type": "observation", "data": data}))
        env.close()

    async with serve(play, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
        await server.serve_forever()


@contextmanager
def serving(*words: str) -> Iterator[tuple[str, int]]:
    """Yields the address and the process id of the server that a command starts."""
    command = [sys.executable, *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"], server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def plan_episodes(env_id: str, num: int) -> Plan:
    """Returns a seed and the oracle's actions for each episode."""
    env = gymnasium.make(env_id).unwrapped
    plan = []
    for seed in range(num):
        rng = np.random.default_rng(seed)
        task = env.task_source.draw(rng)
        plan.append((seed, list(env.oracle_actions(task))))
    env.close()
    return plan


def play_here(env_id: str, plan: Plan, num_envs: int) -> tuple[float, list[int]]:
    """Returns the seconds that the episodes take in this process, and the seeds of failed ones."""
    failed: list[int] = []
    envs = [gymnasium.make(env_id).unwrapped for _ in range(num_envs)]
    num_threads = num_envs if envs[0].has_waiting_steps else 1
    queue, lock = iter(plan), threading.Lock()

    def play(env: TextEnv[Any]) -> None:
        while True:
            with lock:
                episode = next(queue, None)
            if episode is None:
                return
            try:
                env.reset(seed=episode[0])
            except DataError:  # what a sandbox's set-up raises where the machine is overloaded
                failed.append(episode[0])
                continue
            for action in episode[1]:
                info = env.step(action)[4]
            if not info["is_success"]:
                failed.append(episode[0])

    for env in envs[:num_threads]:
        env.reset(seed=0)  # what holds a sandbox starts it now
    start_s = time.perf_counter()
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(play, envs[:num_threads]))
    spent_s = time.perf_counter() - start_s
    for env in envs:
        env.close()
    return spent_s, failed


async def play_there(
    url: str, plan: Plan, num_sessions: int
) -> tuple[float, list[float], list[int]]:
    """Returns the seconds of all episodes on a server, those of every step, and failed seeds."""
    queue, latencies, failed = iter(plan), [], []
    address = url.replace("http", "ws", 1) + "/ws"
    sockets = [await connect(address, compression=None) for _ in range(num_sessions)]

    async def ask(socket: Any, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        await socket.send(json.dumps({"type": kind, "data": data}))
        return json.loads(await socket.recv())["data"]

    async def play(socket: Any) -> None:
        for seed, actions in queue:
            answer = await ask(socket, "reset", {"seed": seed})
            for action in actions if "code" not in answer else ():
                start_s = time.perf_counter()
                answer = await ask(socket, "step", {"text": action})
                latencies.append(time.perf_counter() - start_s)
            if answer.get("reward") != 1.0:
                failed.append(seed)

    await asyncio.gather(*(ask(socket, "reset", {"seed": 0}) for socket in sockets))
    start_s = time.perf_counter()
    await asyncio.gather(*map(play, sockets))
    spent_s = time.perf_counter() - start_s
    for socket in sockets:
        await socket.close()
    return spent_s, latencies, failed


def read_memory_mib(pid: int) -> float:
    """Returns the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def read_cpu_s(pid: int) -> float:
    """Returns the processor time that a process and the children that it has waited for took."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def read_held(url: str) -> dict[str, float]:
    """Returns how many sessions and environments a server has."""
    held = {"sessions": 0.0, "environments": 0.0}
    for line in urlopen(f"{url}/metrics").read().decode().splitlines():
        name, _, value = line.rpartition(" ")
        for key in held:
            if name.partition("{")[0] == f"agentpeft_{key}":
                held[key] += float(value)
    return held


def measure_bare(env_id: str, plan: Plan, num_sessions: int) -> float | None:
    """Returns the seconds of all episodes on a bare server; None where steps wait."""
    env = gymnasium.make(env_id).unwrapped
    has_waiting_steps = env.has_waiting_steps
    env.close()
    if has_waiting_steps:
        return None
    with serving(__file__, "--serve-bare", env_id) as (url, _):
        asyncio.run(play_there(url, plan[:num_sessions], num_sessions))
        return asyncio.run(play_there(url, plan, num_sessions))[0]


def wait_until_left(url: str) -> dict[str, float]:
    """Returns what a server still holds once it holds nothing, or after 10 s."""
    deadline_s = time.monotonic() + 10
    while any((held := read_held(url)).values()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return held


def measure(env_id: str, num_episodes: int, num_sessions: int) -> dict[str, Any]:
    """Returns one line of the result."""
    plan = plan_episodes(env_id, num_episodes)
    play_here(env_id, plan[:MAX_THREADS], MAX_THREADS)
    cpu_s = [read_cpu_s(os.getpid())]
    here_s, failed_here = play_here(env_id, plan, MAX_THREADS)
    cpu_s.append(read_cpu_s(os.getpid()))
    bare_s = measure_bare(env_id, plan, num_sessions)
    words = ("-m", "agentpeft.launch.cli", "serve", env_id, "--port", "0")
    with serving(*words, "--max-sessions", str(num_sessions)) as (url, pid):
        asyncio.run(play_there(url, plan[:num_sessions], num_sessions))
        wait_until_left(url)
        memory_mib = [read_memory_mib(pid)]
        cpu_s.append(read_cpu_s(pid))
        there_s, latencies, failed_there = asyncio.run(play_there(url, plan, num_sessions))
        cpu_s.append(read_cpu_s(pid))
        memory_mib.append(read_memory_mib(pid))
        held = wait_until_left(url)
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000
    return {
        "env": env_id,
        "sessions": num_sessions,
        "episodes": num_episodes,
        "in_process_episodes_per_s": round(num_episodes / here_s, 1),
        "served_episodes_per_s": round(num_episodes / there_s, 1),
        "bare_episodes_per_s": bare_s and round(num_episodes / bare_s, 1),
        "ratio": round(here_s / there_s, 3),
        "ratio_to_bare": bare_s and round(bare_s / there_s, 3),
        "in_process_cpu_ms": round((cpu_s[1] - cpu_s[0]) / num_episodes * 1000, 3),
        "server_cpu_ms": round((cpu_s[3] - cpu_s[2]) / num_episodes * 1000, 3),
        "step_p50_ms": round(p50, 2),
        "step_p99_ms": round(p99, 2),
        "server_mib": memory_mib,
        "failed": [len(failed_here), len(failed_there)],
        "left": held,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Prints a JSON line for each environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--envs", nargs="+", default=list(ENVIRONMENTS))
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--episodes", type=int, help="of each; by default by the environment")
    parser.add_argument("--serve-bare", metavar="ENV", help="be the bare server, for this program")
    options = parser.parse_args(words)
    if options.serve_bare:
        asyncio.run(serve_bare(options.serve_bare))
        return
    for env_id in options.envs:
        num = options.episodes or ENVIRONMENTS.get(env_id, 500)
        print(json.dumps(measure(env_id, num, options.sessions)), flush=True)


if __name__ == "__main__":
    main()
