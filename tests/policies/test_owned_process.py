"""Processes that end with their owner."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from process_parts import seconds_until_gone

CHILD = """
import os, resource, sys, time
from agentpeft.policies.workers.owned_process import end_with
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
end_with(os.getppid())
print(os.getpid(), flush=True)
time.sleep(60)
"""
OWNER = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"


def test_child_with_many_descriptors_ends_with_its_owner():
    command = [sys.executable, "-c", OWNER, sys.executable, "-c", CHILD]
    root = Path(__file__).parents[2]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root)
    child = int(owner.stdout.readline())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    seconds_until_gone([child], 20)
