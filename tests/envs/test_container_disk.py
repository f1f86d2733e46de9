"""The disk of a docker sandbox: every way to take some of the host's ends the episode."""

import ctypes
import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from small_sandbox import SMALL

from agentpeft.envs import EnvFault
from agentpeft.envs.os_interaction.sandboxes.docker import DockerSandbox
from agentpeft.envs.os_interaction.sandboxes.sandbox import make_sandbox

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("sandbox_kind", ["docker"], indirect=True)]

OVER_MIB = 3 * SMALL.disk_mib
HOLDER = """
import array, ctypes, os, platform, socket, sys, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_ssize_t
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
how, num_files = sys.argv[1], int(sys.argv[2]) // 8
pair = socket.socketpair()
server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
server.bind("/tmp/server")
server.listen()
client.connect("/tmp/server")

def hold_files():
    for i in range(num_files):
        name = b"/srv/%d" % i + bytes([12, 10, 255, 28, 13]) + b" (deleted)"
        file = os.open(name, os.O_RDWR | os.O_CREAT)
        os.unlink(name)
        for _ in range(8):
            os.write(file, bytes(1 << 20))
        if how == "mapped":
            assert libc.mmap(None, 8 << 20, 1, 1, file, 0) != -1
        if how in ("sent", "waiting"):
            sender = pair[0] if how == "sent" else client
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))
            sender.sendmsg([b"x"], [rights])
        if how in ("mapped", "sent", "waiting"):
            os.close(file)
    print("holds", flush=True)
    time.sleep(30)

if how == "of many":
    for _ in range(20):
        threading.Thread(target=time.sleep, args=[30]).start()
if how == "of another user":
    os.chmod("/srv", 0o777)
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
thread = threading.Thread(target=hold_files)
thread.start()
if how == "of a thread":  # which outlives the first one
    libc.syscall(60 if platform.machine() == "x86_64" else 93, 0)
thread.join()
"""
NEST = """
import os, sys
os.chdir("/srv")
depth, length, num_files = map(int, sys.argv[1:])
for _ in range(depth):
    os.mkdir("d" * length)
    os.chdir("d" * length)
for i in range(num_files):
    with open(f"f{i}", "wb") as file:
        file.write(bytes(8 << 20))
"""
CHANGE = """
import os, random, shutil, sys, time
rng, end_s = random.Random(int(sys.argv[1])), time.time() + 4
os.makedirs("/srv/t", exist_ok=True)
os.chdir("/srv/t")
def draw():
    return "/".join(rng.choices("abc", k=rng.randrange(1, 6)))
while time.time() < end_s:
    try:
        action, one, two = rng.randrange(8), draw(), draw()
        if action == 0: os.makedirs(one, exist_ok=True)
        if action == 1: os.rename(one, two)
        if action == 2: os.symlink(rng.choice([one, "/proc", "/", "a", one.split("/")[-1]]), two)
        if action == 3: shutil.rmtree(one)
        if action == 4: os.mkfifo(one)
        if action == 5: os.unlink(one)
        if action == 6: os.close(os.open(one, os.O_CREAT | os.O_WRONLY | os.O_NONBLOCK))
        if action == 7 and rng.random() < 0.05 and not os.fork(): os._exit(0)
    except OSError:
        pass
"""
WRITERS = {
    "many files": "for i in {1..6}; do head -c 8M /dev/zero >/srv/f$i; done",
    "nested directories": f"python3 -c '{NEST}' 900 1 6",
    "nesting beyond Python's recursion": f"python3 -c '{NEST}' 1500 1 0",
    "long nested directories": f"python3 -c '{NEST}' 45 200 6",
    "more nesting than can be looked at": f"python3 -c '{NEST}' 600 250 0",
    "file that docker mounts": "head -c 15M /dev/zero >/etc/hostname; head -c 3M /dev/zero >/srv/f",
    "unlinked files": "for i in {1..6}; do exec {fd}>/srv/f; rm /srv/f; "
    "head -c 8M /dev/zero >&$fd; done",
    "unlinked program": "for i in {1..6}; do cp /bin/sleep /srv/s; head -c 8M /dev/zero >>/srv/s; "
    "/srv/s 60 & sleep 0.1; rm /srv/s; done",
    "many directories": "mkdir -p /srv/{1..40}/{1..40}",
    "many names": "cd /srv; for i in {1..1100}; do ln -s x $i; done",
}


@pytest.fixture
def docker_sandbox(sandbox_kind: str) -> Iterator[DockerSandbox]:
    sandbox = make_sandbox("docker", SMALL)
    sandbox.reset()
    yield sandbox
    sandbox.close()


def is_ended(sandbox: DockerSandbox, command: str) -> bool:
    """Returns whether an episode ends while a command, and then a sleep, runs."""
    sandbox.run("touch /tmp/mine", 10)
    sandbox.run(command, 20)
    sandbox.run("sleep 2.5", 10)
    return sandbox.run("ls /tmp/mine", 10).exit_code != 0


@pytest.mark.parametrize("how", WRITERS)
def test_writer_is_ended(docker_sandbox: DockerSandbox, how: str):
    assert is_ended(docker_sandbox, WRITERS[how])
    docker_sandbox.reset()
    assert is_ended(docker_sandbox, WRITERS["many files"])


@pytest.mark.parametrize(
    "how", ["open", "mapped", "sent", "waiting", "of a thread", "of another user", "of many"]
)
def test_holder_of_unlinked_files_is_ended(docker_sandbox: DockerSandbox, how: str):
    docker_sandbox.prepare(f"cat >/tmp/hold <<'END'\n{HOLDER}\nEND", 10)
    assert is_ended(docker_sandbox, f"python3 /tmp/hold '{how}' {OVER_MIB} & sleep 2")


def test_what_is_allowed_is_left_alone(docker_sandbox: DockerSandbox):
    docker_sandbox.prepare(f"cat >/tmp/hold <<'END'\n{HOLDER}\nEND", 10)
    allowed = (
        f"python3 -c '{NEST}' 300 1 0; cd /srv; head -c 3M /dev/zero >f; "
        "for i in {1..20}; do ln f f$i; done; "
        "python3 /tmp/hold open 8 & (echo x; sleep 5) | cat & "
        "head -c 8M /dev/zero >/dev/shm/f; exec {fd}>/dev/shm/f; rm /dev/shm/f"
    )
    assert not is_ended(docker_sandbox, allowed)


def test_tree_that_changes_while_it_is_looked_at_ends_no_watch(docker_sandbox: DockerSandbox):
    docker_sandbox.prepare(f"cat >/tmp/change <<'END'\n{CHANGE}\nEND", 10)
    change = "for i in 1 2 3 4; do python3 /tmp/change $i & done; wait"
    assert not is_ended(docker_sandbox, change)
    assert is_ended(docker_sandbox, WRITERS["unlinked files"])


def test_files_drawn_at_random_are_counted_as_du_counts_them(docker_sandbox: DockerSandbox):
    rng = random.Random(3)
    for is_over in (False, True):
        docker_sandbox.reset()
        left_kib = (SMALL.disk_mib + (4 if is_over else -4)) * 1024
        lines = ["cd /srv"]
        while left_kib > 0:
            size_kib = min(left_kib, rng.randrange(1, 3000))
            left_kib -= size_kib
            folder = "/".join(rng.choices("abc", k=rng.randrange(1, 9)))
            name = f"{folder}/f{left_kib}"
            lines += [f"mkdir -p {folder}; head -c {size_kib}K /dev/zero >{name}"]
            if rng.random() < 0.3:
                lines += [f"exec {{fd}}<{name}; rm {name}"]
        assert is_ended(docker_sandbox, "\n".join(lines)) == is_over


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_watch_that_dies_is_a_fault_until_the_next_reset(sandbox_kind: str):
    limits = replace(SMALL, num_processes=41)  # a pool of its own
    sandboxes = [make_sandbox("docker", limits) for _ in range(2)]
    for sandbox in sandboxes:
        sandbox.reset()
        sandbox.run("echo", 10)
    watch = [thread for thread in threading.enumerate() if thread.name == "disk watch"][-1]
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert raise_in(ctypes.c_ulong(watch.ident), ctypes.py_object(MemoryError)) == 1
    watch.join(20)
    for sandbox in sandboxes:
        for _ in range(2):
            with pytest.raises(EnvFault, match="watch"):
                sandbox.run("echo", 10)
        with pytest.raises(EnvFault, match="watch"):
            sandbox.freeze()
    for sandbox in sandboxes:
        sandbox.reset()
        assert sandbox.run("echo fine", 10).output == "fine\n"
        assert is_ended(sandbox, WRITERS["many files"])
        sandbox.close()
