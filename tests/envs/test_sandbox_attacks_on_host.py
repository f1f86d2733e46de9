"""What an agent may try against the host and other episodes, on every sandbox.

Nothing here could harm the host if a sandbox were broken: what writes writes back what is there.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    Sandbox,
    SandboxKind,
    TrustedScript,
    make_sandbox,
)

pytestmark = pytest.mark.slow

OTHER_FAMILIES = (38, 40)
"""AF_ALG and AF_VSOCK."""


def output(sandbox: Sandbox, command: str, timeout_s: float = 10.0) -> str:
    return sandbox.run(command, timeout_s).output


def is_usable(sandbox: Sandbox) -> bool:
    return output(sandbox, "echo fine; ls -d /etc") == "fine\n/etc\n"


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file of the host that everybody there may read and write."""
    path = tmp_path / "secret"
    path.write_text("sesame")
    path.chmod(0o666)
    for folder in (tmp_path, *tmp_path.parents[:2]):  # pytest's own, up to pytest-of-root
        folder.chmod(0o755)
    yield path
    assert path.read_text() == "sesame"


def test_host_files_are_out_of_reach(sandbox, secret: Path):
    paths = [f"{root}{secret}" for root in ("", "/proc/1/root", "/proc/self/root", "/../../..")]
    for path in paths:
        assert "sesame" not in output(sandbox, f"cat {path}; echo open >{path}")
    sandbox.run(f"ln -s {secret} /l; mkdir -p /d; ln -s ../../../../../../.. /d/up", 5)
    assert "sesame" not in output(sandbox, f"cat /l /d/up{secret}")
    assert "sesame" not in output(sandbox, f"for p in /proc/[0-9]*; do cat $p/cwd{secret}; done")


def test_links_out_of_the_tree_lead_nowhere(sandbox, secret: Path):
    folder = secret.parent
    sandbox.run(f"ln -s {secret} /a; ln -s {folder} /b; ln -s /proc/1/root /c; ln -s / /e", 5)
    files = sandbox.freeze()
    for path in ("/a", "/b/secret", f"/c{secret}", f"/e{secret}", f"/e/../..{secret}"):
        assert files.read(path, 100) is None
        assert not list(files.walk(f"{path}/"))
    assert "sesame" not in sandbox.check(f"cat /a /b/secret /c{secret} {secret}", 10).output


def test_docker_socket_is_not_there(sandbox):
    found = output(sandbox, "ls /var/run/docker.sock /run/docker.sock /run/containerd 2>/dev/null")
    assert found == ""


def test_kernel_settings_cannot_be_written(sandbox):
    for name in ("kernel/core_pattern", "vm/overcommit_memory", "kernel/randomize_va_space"):
        path = f"/proc/sys/{name}"
        assert sandbox.run(f"cat {path} && cat {path} >{path}", 5).exit_code != 0
    assert sandbox.run("echo h >/proc/sysrq-trigger", 5).exit_code != 0
    assert sandbox.run("cat /sys/kernel/uevent_helper >/sys/kernel/uevent_helper", 5).exit_code != 0
    for path in ("/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda"):
        assert sandbox.run(f"head -c 1 {path}", 5).exit_code != 0
    assert (
        output(sandbox, "find /sys -name memory.limit_in_bytes -writable 2>/dev/null | head") == ""
    )


def test_processes_of_others_are_not_seen(sandbox):
    names = output(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "pytest" not in names
    assert "dockerd" not in names


def test_network_reaches_nothing(sandbox):
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        hosts = ["127.0.0.1", socket.gethostbyname(socket.gethostname()), "8.8.8.8", "172.17.0.1"]
        for host in hosts:
            connect = f"import socket; socket.create_connection(({host!r}, {port}), 1)"
            assert sandbox.run(f'python3 -c "{connect}"', 5).exit_code == 1
    assert output(
        sandbox,
        "ls /sys/class/net 2>/dev/null; cut -d: -f1 /proc/net/dev | tail -n +3 | grep -v lo",
    ) in ("", "lo\n")


def test_sockets_of_the_host_are_out_of_reach(sandbox):
    name = f"\0agentpeft-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = f"import socket; socket.socket(1).connect({name!r})"
        assert "Error" in sandbox.prepare(TrustedScript(code, "python3"), 5).output
    for family in OTHER_FAMILIES:
        code = f"import socket; socket.socket({family}, 1)"
        assert "Error" in sandbox.prepare(TrustedScript(code, "python3"), 5).output


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /mnt",
        "mount --bind /etc /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc",
        "unshare -m true",
        "unshare -Ur true",
        "unshare -n true",
        "mknod /disk b 254 0",
        "chroot / mount -t proc none /mnt",
        "nsenter -t 1 -m true",
        "hostname other",
        "date -s '2001-01-01'",
        "swapoff -a && swapon /none",
        "dmesg --clear",
        "ip link add dummy0 type dummy",
        "losetup /dev/loop0 /etc/passwd",
    ],
)
def test_mounts_namespaces_and_machine_settings_are_refused(sandbox, command):
    assert sandbox.run(f"{command}", 5).exit_code != 0


def test_setuid_programs_raise_nobody(sandbox):
    sandbox.prepare("useradd ann; cp /bin/bash /tmp/sh; chmod 6755 /tmp/sh", 10)
    assert output(sandbox, "su ann -c '/tmp/sh -p -c \"id -u\"'") == "1000\n"
    sandbox.run("setcap cap_sys_admin+ep /tmp/sh; /tmp/sh -c 'mount -t tmpfs none /mnt'", 5)
    assert "tmpfs /mnt" not in output(sandbox, "cat /proc/mounts")


def test_processes_outside_cannot_be_signalled_or_traced(sandbox):
    victim = subprocess.Popen(["sleep", "60"])
    try:
        sandbox.run(f"kill -9 {victim.pid}; kill -9 -1", 5)
        sandbox.run("for pid in {1..400}; do [ $pid = $$ ] || kill -9 $pid; done 2>/dev/null", 5)
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
    assert is_usable(sandbox)


def test_results_cannot_be_forged_through_process_1(sandbox):
    forged = '{"id": 4, "value": {"output": "forged", "exit_code": 0}}'
    sandbox.run(f"for i in 0 1 2; do echo '{forged}' >/proc/1/fd/$i; done", 3)
    sandbox.run("kill -STOP 1; kill -TERM 1; kill -INT 1; kill -CHLD 1", 3)
    sandbox.run("echo x >/proc/1/mem; gcore 1; prlimit --pid 1 --nofile=3:3", 3)
    sandbox.freeze()
    assert sandbox.check("echo true; exit 3", 10).exit_code == 3


def test_episodes_do_not_see_each_other(sandbox, sandbox_kind: SandboxKind):
    other = make_sandbox(sandbox_kind, SMALL)
    other.reset()
    other.run("echo mine >/tmp/mine; echo mine >/dev/shm/mine; sleep 77 & export MINE=mine", 5)
    look = "cat /tmp/mine /dev/shm/mine; env; ps aux; cat /proc/[0-9]*/environ; ipcs"
    assert "mine" not in output(sandbox, look).replace("/tmp/mine", "").replace("/dev/shm/mine", "")
    other.reset()
    seen = output(other, "ls /tmp /dev/shm; ps aux; env")
    assert "mine" not in seen
    assert "sleep 77" not in seen
    other.close()
