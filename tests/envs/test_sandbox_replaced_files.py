"""What an agent may put where a grader looks, and how it may hold on to what is thrown away.

Each episode must cost the next ones nothing: no descriptor, no memory.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from process_parts import children_of
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    FrozenFiles,
    Sandbox,
    SandboxKind,
    TrustedScript,
    make_sandbox,
)

pytestmark = pytest.mark.slow

GRADED = ("/etc/passwd", "/etc/shadow", "/etc/group", "/srv/answer", "/opt/a/b/answer")
REPLACEMENTS = {
    "directory": "mkdir {path}",
    "full directory": "mkdir {path}; touch {path}/{{1..20}}",
    "nested directories": "mkdir {path}; (cd {path}; for i in {{1..200}}; do mkdir d; cd d; done)",
    "fifo": "mkfifo {path}",
    "socket": "python3 -c 'import socket; socket.socket(1).bind(\"{path}\")'",
    "loop of links": "ln -s {path} {path}",
    "link to a device": "ln -s /dev/zero {path}",
    "link to a process": "ln -s /proc/1/mem {path}",
    "link to a folder": "ln -s / {path}",
    "device": "mknod {path} c 1 3",
    "whiteout": "mknod {path} c 0 0",
    "unreadable file": "echo x >{path}; chmod 0 {path}",
    "huge sparse file": "truncate -s 1T {path} || truncate -s 10M {path}",
    "large file": "head -c 3M /dev/urandom >{path}",
    "binary file": "head -c 9999 /dev/urandom >{path}",
    "second name": "ln /etc/hostname {path}",
    "nothing": "true",
    "looped folder": "rm -r $(dirname {path}); ln -s . $(dirname {path})",
    "folder elsewhere": "mv $(dirname {path}) /moved; ln -s /proc/self/fd $(dirname {path})",
}
HOLD = """
import array, mmap, os, socket, sys, time
files = [os.open(f"/held{i}", os.O_RDWR | os.O_CREAT) for i in range(3)]
for i, file in enumerate(files):
    os.write(file, b"x" * (4 << 20))
    os.unlink(f"/held{i}")
maps = [mmap.mmap(files[0], 4 << 20)]
os.close(files[0])
pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
sent = [files[1], files[2], pair[0].fileno(), pair[1].fileno()]
if sys.argv[1] == "cycle":
    for end in pair:
        end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))])
    pair = None
    os.close(files[1])
if os.fork():
    os._exit(0)
os.setsid()
os.chdir("/tmp")
time.sleep(60)
"""
FILL = "head -c 11M /dev/zero >/fill 2>/dev/null"


def replace_files(sandbox: Sandbox, rng: random.Random) -> list[str]:
    """Fills the disk, and puts a drawn thing in place of each graded file."""
    kinds = [rng.choice(list(REPLACEMENTS)) for _ in GRADED]
    sandbox.prepare("mkdir -p /opt/a/b; echo x | tee /srv/answer >/opt/a/b/answer", 10)
    sandbox.run(FILL, 10)
    for path, kind in zip(GRADED, kinds, strict=True):
        sandbox.run(f"rm -rf {path}; {REPLACEMENTS[kind].format(path=path)}", 10)
    return kinds


def look(files: FrozenFiles) -> None:
    """Reads what a grader may read, in all ways."""
    for path in GRADED:
        files.stat(path)
        assert len(files.read(path, 4096) or b"") <= 4096
        for _, status in files.walk(path):
            assert status.mtime
    files.walk("/")


def count_descriptors(sandbox: Sandbox, kind: SandboxKind) -> int:
    """Returns how many descriptors all processes have that serve a sandbox."""
    if kind == "bubblewrap":
        helper = sandbox._helper._process.pid
        pids = [helper, *children_of(helper)[:1]]
    else:
        container = sandbox._container._container
        container.reload()
        pids = [container.attrs["State"]["Pid"]]
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def test_replaced_files_leave_no_descriptor_open(sandbox: Sandbox, sandbox_kind: SandboxKind):
    rng = random.Random(5)
    for _ in range(6 if sandbox_kind == "bubblewrap" else 4):
        sandbox.reset()
        kinds = replace_files(sandbox, rng)
        files = sandbox.freeze()
        files.stat("/")
        before = count_descriptors(sandbox, sandbox_kind)
        for _ in range(3):
            look(files)
        assert count_descriptors(sandbox, sandbox_kind) == before, kinds


@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_each_replacement_is_read_as_what_it_is(sandbox: Sandbox, kind: str):
    path = "/srv/answer"
    sandbox.prepare(f"rm -f {path}; {REPLACEMENTS[kind].format(path=path)}", 10)
    files = sandbox.freeze()
    status = files.stat(path)
    data = files.read(path, 100)
    assert (data is not None) == (status is not None and status.kind == "file")


@pytest.mark.parametrize("sandbox_kind", ["bubblewrap"], indirect=True)
class TestMemoryOfOneSandbox:
    """Bubblewrap keeps its helper and control group from episode to episode."""

    def test_is_that_of_an_empty_episode_after_replaced_files(self, sandbox_kind, control_groups):
        sandbox, rng = make_sandbox(sandbox_kind, SMALL), random.Random(6)
        sandbox.reset()
        first = sandbox._helper
        num_first = count_descriptors(sandbox, sandbox_kind)
        for _ in range(15):
            sandbox.reset()
            replace_files(sandbox, rng)
            look(sandbox.freeze())
        sandbox.reset()
        assert sandbox._cgroups.measure_held_bytes() < 12 << 20
        assert count_descriptors(sandbox, sandbox_kind) <= num_first + 3  # those of a spare shell
        assert sandbox.run("python3 -c 'bytearray(100 << 20)'", 10).exit_code == 0
        assert sandbox._helper is first
        sandbox.close()

    @pytest.mark.parametrize("how", ["open", "cycle"])
    def test_is_freed_of_files_that_processes_held(self, sandbox_kind, control_groups, how: str):
        sandbox = make_sandbox(sandbox_kind, SMALL)
        sandbox.reset()
        first = sandbox._helper
        for _ in range(12):
            sandbox.reset()
            assert sandbox.prepare(TrustedScript(HOLD, "python3", (how,)), 10).exit_code == 0
            sandbox.freeze()
        sandbox.reset()
        assert sandbox.run("python3 -c 'bytearray(100 << 20)'", 10).exit_code == 0
        assert sandbox._helper is first
        sandbox.close()

    def test_is_freed_of_what_a_check_wrote(self, sandbox_kind, control_groups):
        sandbox = make_sandbox(sandbox_kind, SMALL)
        sandbox.reset()
        sandbox.check(FILL, 10)
        sandbox.reset()
        assert sandbox._cgroups.measure_held_bytes() < 8 << 20
        sandbox.close()

    def test_that_something_holds_ends_the_sandbox_and_not_the_next_episode(
        self, sandbox_kind, control_groups
    ):
        sandbox = make_sandbox(sandbox_kind, replace(SMALL, disk_mib=40))
        sandbox.reset()
        sandbox.run("head -c 30M /dev/zero >/fill", 10)
        first = sandbox._helper
        worker = children_of(first._process.pid)[0]
        fill = Path("/proc", str(worker), "root", "tmp", "episode", "root", "fill")
        with fill.open("rb"):
            sandbox.freeze()
            sandbox.reset()
            assert sandbox._helper is not first
            assert sandbox.run("python3 -c 'bytearray(120 << 20)'", 10).exit_code == 0
        sandbox.close()
