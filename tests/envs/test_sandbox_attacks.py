"""What an agent may try against its limits and its shell, on every sandbox.

Nothing here could harm the host if a sandbox were broken: what exhausts is small, and a limit is
probed before it is attacked.
"""

import os
import time

import pytest
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes.sandbox import Sandbox, TrustedScript

pytestmark = pytest.mark.slow

FORK_80 = """
import os, time
for num_started in range(80):
    try:
        pid = os.fork()
    except OSError:
        break
    if not pid:
        time.sleep(5)
        os._exit(0)
print(num_started)
"""


def output(sandbox: Sandbox, command: str, timeout_s: float = 10.0) -> str:
    return sandbox.run(command, timeout_s).output


def is_usable(sandbox: Sandbox) -> bool:
    return output(sandbox, "echo fine; ls -d /etc") == "fine\n/etc\n"


def test_fork_bomb_is_bounded_and_ended(sandbox):
    started = int(sandbox.prepare(TrustedScript(FORK_80, "python3"), 5).output)
    assert 20 <= started <= SMALL.num_processes + 5
    sandbox.reset()
    result = sandbox.run(":(){ :|:& };:; sleep 60", 1.0)
    assert result.is_timeout or result.is_new_shell
    assert is_usable(sandbox)
    assert int(output(sandbox, "set -- /proc/[0-9]*; echo $#")) <= SMALL.num_processes + 5


def test_who_was_ended_with_a_command_says_nothing_in_the_next(sandbox):
    for writer in ("while :; do echo late; done", "trap 'echo late' INT; while :; do :; done"):
        for _ in range(3):
            run = sandbox.run(f"for i in {{1..8}}; do ({writer}) & done; sleep 60", 0.5)
            assert run.is_timeout
            assert is_usable(sandbox)


def test_fork_bomb_of_many_users_is_bounded(sandbox):
    sandbox.prepare("for i in 1 2 3 4; do useradd u$i; done", 10)
    spawn = "for i in {1..20}; do sleep 9 & done; wait"
    sandbox.run(f"for i in 1 2 3 4; do su u$i -c '{spawn}' & done 2>/dev/null; sleep 1", 5)
    assert int(output(sandbox, "set -- /proc/[0-9]*; echo $#")) <= SMALL.num_processes + 5


def test_memory_filling_ends_who_does_it(sandbox):
    for command in ("python3 -c 'x = bytearray(300 << 20)'", "tail /dev/zero"):
        assert sandbox.run(command, 20).exit_code != 0
    assert is_usable(sandbox)


def test_memory_filling_by_many_ends_and_the_sandbox_goes_on(sandbox):
    eat = "import time; x = bytearray(8 << 20); open('/proc/self/oom_score_adj', 'w').write('0')"
    sandbox.run(f'for i in {{1..30}}; do python3 -c "{eat}; time.sleep(5)" & done; sleep 3', 10)
    # Until the last of them has ended, the shell may be what the kernel ends for the next fork
    sandbox.run("wait", 20)
    assert is_usable(sandbox)
    sandbox.freeze()


@pytest.mark.parametrize(
    "command",
    [
        "for i in $(seq 40); do dd if=/dev/zero of=/big$i bs=1M count=1 || break; done; sleep 1",
        "for i in $(seq 40); do fallocate -l 1M /srv/f$i || break; done; sleep 1",
        "for i in $(seq 40); do head -c 1M /dev/zero >/dev/shm/f$i || break; done; sleep 1",
    ],
)
def test_disk_filling_is_bounded(sandbox, command):
    sandbox.run(f"({command}) 2>/dev/null", 20)
    used = "cat /big* /srv/f* /dev/shm/f* 2>/dev/null | wc -c"
    assert int(output(sandbox, used)) <= 17 << 20
    assert is_usable(sandbox)


def test_one_large_file_fails(sandbox):
    assert sandbox.run("head -c 20M /dev/zero >/big", 10).exit_code != 0
    assert is_usable(sandbox)


def test_inode_filling_is_bounded(sandbox):
    sandbox.run("mkdir /many; touch /many/{1..1500} 2>/dev/null; sleep 1", 20)
    assert int(output(sandbox, "ls /many 2>/dev/null | wc -l")) <= SMALL.num_inodes
    assert is_usable(sandbox)


@pytest.mark.parametrize("command", ["sleep 99", "while :; do :; done", "yes >/dev/null"])
def test_sleeping_and_busy_loops_end_in_time(sandbox, command):
    assert sandbox.run(command, 0.5).is_timeout
    assert output(sandbox, "pgrep -c 'sleep|yes' || true") == "0\n"


def test_busy_processes_get_no_more_than_their_processors(sandbox):
    sandbox.run("for i in 1 2 3; do (while :; do :; done) & done; sleep 2", 10)
    ticks = output(sandbox, "cat /proc/[0-9]*/stat | awk '{ t += $14 + $15 } END { print t }'")
    assert float(ticks) / os.sysconf("SC_CLK_TCK") < 3.5


def test_output_flood_is_bounded(sandbox):
    result = sandbox.run("yes", 1.0)
    assert result.is_timeout
    assert len(result.output) < 2100
    sandbox.run("yes &", 1.0)
    assert len(output(sandbox, "echo x")) < 2100


def test_binary_output_is_text(sandbox):
    result = sandbox.run("head -c 100000 /dev/urandom; printf '\\0\\036\\033c'", 10)
    assert result.exit_code == 0
    result.output.encode()
    assert is_usable(sandbox)


@pytest.mark.parametrize(
    "command",
    [
        "exec <&- >&- 2>&-",
        'for fd in /proc/$$/fd/*; do eval "exec ${fd##*/}>&-"; done',
        "exec /bin/true",
        "exec 200>/dev/null",
        "eval() { :; }; builtin() { :; }; printf() { :; }; alias eval=true printf=true",
        "set -e; false",
        "trap 'echo trapped' EXIT DEBUG ERR; PROMPT_COMMAND='exit'; exit",
        "kill -9 -1",
        "readonly PS1 BASH_ENV; enable -n eval printf builtin",
    ],
)
def test_shell_that_is_closed_or_spoilt_does_not_stop_the_episode(sandbox, command):
    sandbox.run(command, 1.0)
    sandbox.run("echo", 1.0)
    assert "fine" in output(sandbox, "echo fine")


def test_replaced_shell_program_stops_no_grader(sandbox):
    sandbox.run("cp /bin/true /tmp/t; cp /tmp/t /bin/bash; exit", 5)
    assert sandbox.run("echo x", 3).exit_code != 0 or True
    assert sandbox.freeze().stat("/etc/passwd") is not None
    assert sandbox.check("echo checked", 10).output == "checked\n"


def test_replies_keep_their_order_in_a_flood_of_threads(sandbox):
    sandbox.run("(while :; do echo noise; done) &", 3)
    time.sleep(0.2)
    result = sandbox.run("echo end", 3)
    assert result.exit_code == 0
    assert len(result.output) < 2100
