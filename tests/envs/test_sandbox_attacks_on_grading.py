"""What an agent may do to the programs, libraries and processes that a check might use."""

import pytest

from agentpeft.envs.os_interaction.sandboxes.sandbox import Sandbox

pytestmark = pytest.mark.slow

CHECK = """
[ "$(cat /srv/answer)" = right ] && grep -q right /srv/answer && test -s /srv/answer \
    && [ "$(stat -c %s /srv/answer)" = 6 ] \
    && python3 -c 'assert open("/srv/answer").read() == "right\\n"'
"""
LIES = """
int main() { return 0; }
"""
LIBRARY = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void lie(void) { write(1, "lied", 4); _exit(0); }
"""
PROGRAMS = "bash sh dash test [ cat grep stat ls python3 python3.11 env echo mawk awk sed find id"


@pytest.fixture
def liar(sandbox: Sandbox) -> Sandbox:
    """A sandbox with a program that always succeeds, and a library that makes any succeed."""
    made = sandbox.prepare(
        f"cat >/lie.c <<'E'\n{LIES}\nE\ncat >/lib.c <<'E'\n{LIBRARY}\nE\n"
        "cd /; gcc -static -o lie lie.c && gcc -shared -fPIC -o lie.so lib.c"
        " && echo wrong >/srv/answer",
        120,
    )
    assert made.exit_code == 0, made.output
    return sandbox


@pytest.mark.parametrize(
    "attack",
    [
        f"for p in {PROGRAMS}; do cp /lie /usr/bin/$p.new; mv /usr/bin/$p.new /usr/bin/$p; done",
        f"mkdir -p /usr/local/bin; for p in {PROGRAMS}; do ln -f /lie /usr/local/bin/$p; done",
        "mv /bin /bin2; mkdir /bin; cp /lie /bin/bash; cp /lie /bin/sh",
        "mv /usr /usr2; mkdir -p /usr/bin; cp /lie /usr/bin/bash",
        "echo /lie.so >/etc/ld.so.preload",
        "export LD_PRELOAD=/lie.so; echo 'export LD_PRELOAD=/lie.so' | tee /etc/profile"
        " ~/.bashrc /etc/bash.bashrc ~/.profile /etc/environment",
        "cp /lie.so /lib/x86_64-linux-gnu/libc.so.6.new;"
        " mv /lib/x86_64-linux-gnu/libc.so.6.new /lib/x86_64-linux-gnu/libc.so.6",
        "for v in 2 3 4; do d=/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v$v; mkdir -p $d;"
        " cp /lie.so $d/libc.so.6; cp /lie.so $d/libtinfo.so.6; done",
        "mkdir /evil; cp /lie.so /evil/libtinfo.so.6; cp /lie.so /evil/libc.so.6;"
        " echo /evil >/etc/ld.so.conf; ldconfig",
        "cp /lie /lib64/ld; mv -f /lib64/ld /lib64/ld-linux-x86-64.so.2",
        "ln -sf /lie /etc/alternatives/awk; ln -sf /lie /etc/alternatives/vi",
        "echo 'import os; os._exit(0)' | tee /usr/lib/python3.11/sitecustomize.py"
        " /etc/python3.11/sitecustomize.py"
        " /usr/local/lib/python3.11/dist-packages/sitecustomize.py",
        "echo 'import os; os._exit(0)' >/usr/lib/python3.11/os.py",
        "echo 'import os; os._exit(0)' >/usr/local/lib/python3.11/dist-packages/x.pth",
        "export BASH_ENV=/b ENV=/b PATH=/evil PYTHONPATH=/evil IFS=x; echo 'exit 0' >/b",
        "trap 'exit 0' EXIT DEBUG ERR RETURN; alias test=true [=true; set -o functrace",
        "test() { true; }; cat() { echo right; }; export -f test cat",
        "rm -rf /dev /proc 2>/dev/null; ln -s / /dev",
        "(while :; do echo right >/srv/answer; echo wrong >/srv/answer; done) & sleep 0.2;"
        " kill -STOP $!; echo wrong >/srv/answer",
        "setsid sh -c 'while :; do sleep 0.01; cp /lie /usr/bin/test; done' & sleep 0.1",
    ],
)
def test_check_is_not_fooled(liar, attack):
    liar.run(attack, 10)
    liar.freeze()
    result = liar.check(CHECK, 10)
    assert result.exit_code == 1, result
    assert "lied" not in result.output


def test_check_succeeds_where_the_answer_is_right(liar):
    liar.run("echo right >/srv/answer; cp /lie /usr/bin/test", 5)
    liar.freeze()
    assert liar.check(CHECK, 10).exit_code == 0


def test_background_writer_is_dead_before_files_are_read(sandbox):
    sandbox.run("(while :; do date +%N >/srv/f; done) & disown; setsid sleep 60 &", 5)
    files = sandbox.freeze()
    first = files.read("/srv/f", 99)
    assert all(files.read("/srv/f", 99) == first for _ in range(50))


def test_limits_of_the_reader_cannot_be_lowered(sandbox):
    sandbox.run("echo x >/srv/f; prlimit --pid 1 --nofile=3:3 --fsize=0:0 --cpu=1:1", 5)
    files = sandbox.freeze()
    assert files.read("/etc/passwd", 5) == b"root:"
    assert len(list(files.walk("/etc"))) > 50


def test_check_of_a_forged_user_database_reads_it_as_data(sandbox):
    sandbox.run(
        "echo 'eve:x:0:0::/:/bin/sh' >>/etc/passwd; echo 'passwd: evil' >/etc/nsswitch.conf", 5
    )
    sandbox.freeze()
    assert sandbox.check("getent passwd eve", 10).output == "eve:x:0:0::/:/bin/sh\n"
