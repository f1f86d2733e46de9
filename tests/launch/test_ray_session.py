"""What a run's own Ray takes of the machine, and what other clusters on it still have."""

import os
import subprocess
import sys
import time

import pytest

AGENT_PORT = 52365
"""Of `ray start`, without which `ray job submit` finds no agent."""
RUN = """
import sys
from pathlib import Path
from agentpeft.launch.run.ray_session import ray_session
with ray_session(None, Path(sys.argv[1])):
    print("up", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_runs_side_by_side_leave_a_clusters_agent_its_port(ray_parent, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    runs = []
    try:
        for name in ("one", "two"):  # in turn: a raylet waits for its agent for 15 s only
            runs.append(
                subprocess.Popen(
                    [sys.executable, "-c", RUN, str(tmp_path / name)],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            assert runs[-1].stdout.readline() == b"up\n"
        ports, deadline_s = [], time.monotonic() + 60
        while len(ports) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.2)
            files = ray_parent.glob("*/session_*/dashboard_agent_listen_port_*")
            ports = [int(text) for file in files if (text := file.read_text())]
    finally:
        for run in runs:
            run.communicate()
    assert len(set(ports)) == 2 and min(ports) > 0
    assert AGENT_PORT not in ports
