"""What a live check sees of an episode's processes, and what these may do to it: nothing."""

import time

import pytest

from agentpeft.envs.os_interaction.sandboxes.sandbox import TrustedScript

pytestmark = pytest.mark.slow

LIES = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void lie(void) { write(1, "lied", 4); _exit(0); }
int main() { return 0; }
"""
SEES = "pgrep -f monitor.sh >/dev/null && [ -d /proc/$(cat /srv/pid) ] && [ -f /srv/log ]"
START = """
printf '#!/bin/bash\nwhile :; do date >>/srv/log; sleep 0.2; done\n' >/srv/monitor.sh
chmod 755 /srv/monitor.sh; setsid /srv/monitor.sh >/dev/null 2>&1 & echo $! >/srv/pid; sleep 0.3
"""
# It waits without children: a fork of `monitor.sh` has its name until it executes another program.
CHILDLESS = START.replace("do date >>/srv/log; sleep 0.2", "do read -r -t 9 <>/srv/pipe").replace(
    "chmod", "mkfifo /srv/pipe; chmod"
)
CONTINUED = """
import ctypes, os, signal, struct, time
# A timer that sends SIGCONT every millisecond: SIGSTOP does not hold this process.
libc = ctypes.CDLL(None)
event = struct.pack("QiiQQQQQQ", 0, signal.SIGCONT, 0, 0, 0, 0, 0, 0, 0)
timer = ctypes.c_void_p()
assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 10**6, 0, 10**6), None)
while True:
    for path in ("/srv/pid", "/srv/log", "/srv/monitor.sh"):
        open(path, "a").write("x")
"""
ATTACKS = {
    "kills all that it sees": (
        "(trap '' TERM; while :; do for p in /proc/[0-9]*; do p=${p#/proc/};"
        " [ $p = $BASHPID ] || [ $p = 1 ] || [ $p = $$ ] || [ $p = $(cat /srv/pid) ] ||"
        " kill -9 $p; done; done) >/dev/null 2>&1 &"
    ),
    "continues all": "(while :; do kill -CONT -1; done) >/dev/null 2>&1 &",
    "limits all that it sees": (
        "(while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] ||"
        " prlimit --pid $p --nofile=0:0; renice 19 $p; done; done) >/dev/null 2>&1 &"
    ),
    "has programs of its own": (
        "for p in pgrep ps kill bash cat sleep; do cp /lie /usr/bin/$p.new;"
        " mv /usr/bin/$p.new /usr/bin/$p; ln -f /lie /usr/local/bin/$p; done"
    ),
    "preloads": "echo /lie.so >/etc/ld.so.preload; export LD_PRELOAD=/lie.so",
    "has functions": "pgrep() { true; }; export -f pgrep; echo 'pgrep() { true; }' >>~/.bashrc",
    "floods": "(while :; do cat /dev/zero; done) & yes",
    "guesses the folder": "mkdir -p /run/check-1; mkfifo /run/check-1/asked; rm -f /usr/bin/sleep",
    "replaces folders": "(while :; do mv /srv /s; ln -s /usr /srv; rm /srv; mv /s /srv; done) &",
}


@pytest.fixture
def victim(sandbox):
    """A sandbox in which the agent has prepared programs that lie."""
    script = f"cat >/lie.c <<'E'\n{LIES}\nE\ncd /; gcc -o lie lie.c && gcc -shared -fPIC -o lie.so"
    made = sandbox.prepare(f"{script} lie.c; cat >/continued.py <<'E'\n{CONTINUED}\nE", 120)
    assert made.exit_code == 0, made.output
    return sandbox


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "replaces folders"])
@pytest.mark.parametrize("is_right", [True, False])
def test_an_attack_changes_no_verdict(victim, name, is_right):
    victim.run(START if is_right else "echo 999999 >/srv/pid", 10)
    victim.run(ATTACKS[name], 2)
    result = victim.check_live(f"{SEES}; echo $?; sleep 0.5; {SEES}", 30)
    assert "lied" not in result.output
    assert (result.exit_code == 0) == is_right, result


@pytest.mark.parametrize(
    "attack",
    [
        ATTACKS["replaces folders"],
        "python3 /continued.py & sleep 0.3",
        "f() { f | f & }; f; sleep 0.3",
        "for i in $(seq 100); do setsid sleep 1000 & done",
        "(while :; do setsid sh -c 'sleep 0.01' & done) & sleep 0.3",
        "prlimit --pid 1 --nofile=3:3 --fsize=0:0 --cpu=1:1",
        "head -c 40M /dev/zero >/srv/big",
        "mkdir /srv/d; cd /srv/d; for i in $(seq 900); do : >$i; done; cp /continued.py /srv",
        "exec -a monitor /bin/bash -c 'kill -9 $PPID; while :; do :; done'",
    ],
)
def test_what_cannot_be_right_fails_in_time(victim, attack):
    victim.run(attack, 3)
    started_s = time.monotonic()
    result = victim.check_live(f"{SEES}; sleep 0.2; {SEES}", 20)
    assert result.exit_code != 0
    assert time.monotonic() - started_s < 40
    victim.freeze()


@pytest.mark.parametrize(
    "hanging", ["sleep infinity", "while :; do :; done", "sleep 1000", "read -r _ <&9; sleep 9d"]
)
def test_a_check_that_hangs_ends_in_its_time(sandbox, hanging):
    sandbox.run(START, 10)
    started_s = time.monotonic()
    result = sandbox.check_live(hanging, 2)
    assert (result.exit_code, result.is_timeout) == (None, True)
    assert time.monotonic() - started_s < 15


def test_numbers_names_users_and_states_are_the_episodes(sandbox):
    sandbox.run(
        CHILDLESS + "useradd bob; su -s /bin/bash bob -c 'exec -a \"a  b\" sleep 500' & sleep 0.3",
        10,
    )
    sandbox.run(
        "sleep 400 & sleep 0.3; kill -STOP $!; echo $! >/srv/asleep; python3 -c 'import time\n"
        "time.sleep(300)' & sleep 0.2",
        10,
    )
    listing = (
        "ps -eo pid,user,ni,comm,args --no-headers | grep -E 'monitor|a  b|sleep [0-9]00|time'"
    )
    inside = sandbox.run(listing, 10).output.splitlines()
    seen = sandbox.check_live(
        f"{listing}; ps -o stat= -p $(cat /srv/asleep)", 20
    ).output.splitlines()
    kept = [line.rstrip() for line in inside if "grep" not in line]
    assert [line.rstrip() for line in seen if "grep" not in line][:-1] == kept
    assert len(kept) == 5
    assert seen[-1].startswith("T")


def test_what_a_check_does_to_processes_and_files_stays_with_it(sandbox):
    sandbox.run(START, 10)
    assert (
        sandbox.check_live("kill -9 $(cat /srv/pid); rm /srv/log; sleep 0.2; exit 3", 20).exit_code
        == 3
    )
    assert sandbox.check_live(SEES, 20).exit_code == 0
    sandbox.freeze()
    assert sandbox.check("[ -f /srv/log ] && ! pgrep -f monitor.sh", 20).exit_code == 0


def test_what_has_ended_while_the_check_sleeps_is_gone(sandbox):
    sandbox.run("sleep 5 & (sleep 4; rm /srv/x; echo 2 >/srv/y) & echo 1 | tee /srv/x /srv/y", 10)
    script = (
        "echo kept >/srv/own; pgrep -c sleep; sleep 6; pgrep -c sleep; cat /srv/y /srv/own /srv/x"
    )
    result = sandbox.check_live(script, 20)
    assert result.output.splitlines()[:4] == ["2", "0", "2", "kept"]
    assert "No such file" in result.output


def test_neither_script_nor_answer_is_in_the_list_of_processes(sandbox):
    sandbox.run("true", 5)
    script = "pgrep -af 'monitor|sleep|import|dev/null'; [ \"$1\" = monitor.sh ]"
    result = sandbox.check_live(TrustedScript(script, args=("monitor.sh",)), 20)
    assert (result.output, result.exit_code) == ("", 0)
    script = f"import sys, subprocess\nassert sys.argv[1:] == ['monitor.sh']\nprint({script!r})\n"
    script += "sys.exit(subprocess.run(['pgrep', '-af', 'monitor|sleep|import']).returncode)"
    result = sandbox.check_live(TrustedScript(script, "python3", ("monitor.sh",)), 20)
    assert result.exit_code == 1
    assert "python3" not in result.output


def test_a_new_episode_has_nothing_of_the_last_ones_check(sandbox):
    sandbox.run(START, 10)
    assert sandbox.check_live(SEES, 20).exit_code == 0
    sandbox.freeze()
    sandbox.reset()
    sandbox.run("true", 5)
    assert sandbox.check_live("pgrep -f monitor.sh || [ -e /srv/log ]", 20).exit_code == 1
