"""Processes that end with their owner."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_parts import seconds_until_gone

from agentpeft.policies.workers.owned_process import read_root_exception

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


NOTES = {
    "log.exception('worker failed to start'); log.error('ended', exc_info=KeyError('x'))": "E: why",
    "log.warning('odd', exc_info=True); log.error('no exception')": None,
    "log.error('odd', exc_info=KeyError('x')); log.exception('gave up')": "E: why",
    "raise": "E: why",
    "raise RuntimeError('engine') from error": "E: why",
    "raise E('two\\nlines')": "E: two lines",
    "os.kill(os.getpid(), 9)": None,
}


@pytest.mark.parametrize(("ends", "expected"), NOTES.items())
def test_an_owner_reads_what_its_child_failed_of(tmp_path, ends, expected):
    code = f"""
import logging, os, sys
from pathlib import Path
from agentpeft.policies.workers.owned_process import note_exceptions
class E(Exception): pass
note_exceptions(Path(sys.argv[1]))
log = logging.getLogger("vllm")
log.propagate, log.handlers = False, [logging.NullHandler()]
try:
    raise E("why")
except E as error:
    {ends}
"""
    path = tmp_path / "notes"
    subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=False)
    assert read_root_exception(path) == expected
