"""An episode's processes for a check that looks at them: stopped, listed, and imitated.

A check never runs beside the agent's processes. They are stopped where they are, and the check,
which runs on another machine, finds a *placeholder* for each: a process with the same number, name,
command line, user, niceness and state, which does nothing. What a process is called is the agent's
to say; nothing else of it gets across.

`EpisodeProcesses` runs where the agent does, `Placeholders` where the check does. Standard library
only (Python 3.9).
"""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentpeft.envs.os_interaction.sandboxes.inside import kernel
from agentpeft.envs.os_interaction.sandboxes.inside.children import list_children, send_signal

Fields = dict[str, Any]
_STOP_S = 1.0
"""A process that still runs after this is killed: a timer may keep sending SIGCONT."""
_GIVE_UP_S = 4.0
_ROUND_S = 0.005
_POLL_S = 0.0005
_STOPPED = "TtDZX"
"""States of processes that run nothing of their own once they have been sent SIGSTOP."""
_MAX_NAME_BYTES = 16_384
_MAX_SKIPPED = 5_000
"""Numbers that are passed over, by starting processes that end at once, to reach a process's."""
_OWN_NUMBER = 20_000
"""First number of a check's own processes, if it can be chosen."""
_MAX_DESCRIPTORS = 256
_Reach = Callable[[int], None]
"""Makes the next process that is started get a number, if possible."""
_Work = Callable[[_Reach], "list[int]"]


class EpisodeProcesses:
    """The processes of an episode, without those that serve it."""

    def __init__(
        self,
        find_init: Callable[[], int],
        list_pids: Callable[[], list[int]],
        stop_all: Callable[[], None],
    ) -> None:
        """`stop_all` sends SIGSTOP to all at once, so that none is started in between."""
        self._find_init = find_init
        self._list_pids = list_pids
        self._stop_all = stop_all
        self._asleep: set[int] = set()
        self._are_stopped = False

    def stop(self) -> None:
        """Stops every process, or kills it if it cannot be stopped. Raises: OSError."""
        if not self._are_stopped:
            self._asleep = {pid for pid in self._list_pids() if _read_state(pid) == "T"}
        self._are_stopped = True
        started_s = time.monotonic()
        while True:
            with suppress(OSError):  # no process may be left to do it with
                self._stop_all()
            running = [pid for pid in self._list_pids() if _read_state(pid) not in _STOPPED]
            if not running:
                return
            passed_s = time.monotonic() - started_s
            for pid in running:
                send_signal(pid, signal.SIGSTOP if passed_s < _STOP_S else signal.SIGKILL)
            if passed_s > _GIVE_UP_S:
                raise OSError("the episode's processes cannot be stopped")
            time.sleep(_ROUND_S)

    def forget(self) -> None:
        """Resets the state for another episode."""
        self._are_stopped = False

    def resume(self) -> None:
        """Resumes all but those that the episode itself had stopped."""
        self._are_stopped = False
        for pid in self._list_pids():
            if pid not in self._asleep:
                send_signal(pid, signal.SIGCONT)

    def describe(self) -> list[Fields]:
        """Returns the running processes by number, for `Placeholders.update`.

        The shell is left out, since the check has its like.
        """
        shell = list_children(self._find_init())[:1]
        pids = [pid for pid in self._list_pids() if pid not in shell]
        described = [_describe(pid, pid in self._asleep) for pid in pids]
        return sorted(filter(None, described), key=lambda fields: fields["number"])


def list_namespace(init: int) -> list[int]:
    """Returns the processes in another process's namespace, without that process."""
    try:
        namespace = os.stat(f"/proc/{init}/ns/pid").st_ino
    except OSError:
        return []
    pids = []
    for pid in _list_all():
        with suppress(OSError):  # of other users, or just gone
            if pid != init and os.stat(f"/proc/{pid}/ns/pid").st_ino == namespace:
                pids.append(pid)
    return pids


def list_container() -> list[int]:
    """Returns the processes of this process namespace, without its first one."""
    return [pid for pid in _list_all() if pid != 1]


def _list_all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "X"


def _read_name(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_bytes()[:-1]
    return b""


def _describe(pid: int, is_stopped: bool) -> Fields | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").split("\n")
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        name = _read_name(pid)
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read(_MAX_NAME_BYTES)
        nice = os.getpriority(os.PRIO_PROCESS, pid)
    except OSError:
        return None
    if status["State"][0] in "ZX":
        return None
    return {
        "number": int(status["NSpid"].split()[-1]),
        "name": name.decode("latin-1"),
        "arguments": arguments.decode("latin-1").rstrip("\0").split("\0"),
        "uid": int(status["Uid"].split()[0]),
        "gid": int(status["Gid"].split()[0]),
        "nice": nice,
        "is_stopped": is_stopped,
    }


class Placeholders:
    """Processes that look like an episode's, and do nothing."""

    def __init__(self, call_inside: Callable[[_Work], list[int]]) -> None:
        """`call_inside` calls a function where the check's processes live."""
        self._call_inside = call_inside
        self._made: list[tuple[Fields, int]] = []

    def update(self, processes: list[Fields], is_first: bool) -> None:
        """Ends placeholders of processes that ended or changed, and starts missing ones.

        `is_first`: it is the check's first call, and none is there. A number that is taken or out
        of reach cannot be had: its process gets another one.
        Raises: OSError.
        """
        if is_first:
            self._made = []
        gone = [pid for fields, pid in self._made if fields not in processes]
        staying = [made for made in self._made if made[1] not in gone]
        known = [fields for fields, _ in staying]
        new = [fields for fields in processes if fields not in known]

        def change(reach: _Reach) -> list[int]:
            for pid in gone:
                send_signal(pid, signal.SIGKILL)
            _await(lambda: all(_read_state(pid) == "X" for pid in gone))
            return [_start(fields, reach) for fields in new]

        self._made = [*staying, *zip(new, self._call_inside(change))]  # noqa: B905 (Python 3.9)


def call_here(work: _Work) -> list[int]:
    """Calls a function that starts processes in this namespace, where numbers cannot be chosen.

    To reach a number, processes that end at once are started before.
    """
    return work(skip_to)


def call_in_namespaces(init: int, work: _Work) -> list[int]:
    """Runs a function in a child with the namespaces of another process; returns its result.

    The child has neither our files nor our network, and a number that no episode has.
    Raises: OSError.
    """
    return _call_as_child(init, kernel.CLONE_ALL, work)


def stop_namespace(init: int) -> None:
    """Sends SIGSTOP to all of another process's namespace but that one. Raises: OSError."""

    def stop(_: _Reach) -> list[int]:
        os.kill(-1, signal.SIGSTOP)
        return []

    _call_as_child(init, kernel.CLONE_NEWPID, stop)


def _call_as_child(init: int, flags: int, work: _Work) -> list[int]:
    last_pid = -1
    with suppress(OSError):
        last_pid = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)  # theirs is read-only
    receive, send = os.pipe()
    try:
        middle = os.fork()
        if not middle:
            try:
                _run_as_child(init, flags, work, last_pid, send)
            finally:
                os._exit(0)
    finally:
        os.close(send)
        if last_pid >= 0:
            os.close(last_pid)
        with open(receive, "rb") as file:
            answer = file.read()
    with suppress(ChildProcessError):
        os.waitpid(middle, 0)
    if not answer:
        raise OSError("nothing can be started in a sandbox")
    return json.loads(answer)  # type: ignore[no-any-return]


def _run_as_child(init: int, flags: int, work: _Work, last_pid: int, send: int) -> None:
    def reach(number: int) -> None:
        if last_pid < 0:
            skip_to(number)
            return
        with suppress(OSError):  # then it gets another one
            os.pwrite(last_pid, str(number - 1).encode(), 0)

    os.setsid()
    kernel.enter_namespaces(init, flags)
    if os.fork():  # entering a process namespace takes effect for children alone
        return
    if flags != kernel.CLONE_ALL:
        os.write(send, json.dumps(work(reach)).encode())
        return
    kernel.apply_filter()
    if last_pid >= 0:  # so as to take no number that is wanted, nor do the check's own
        reach(_OWN_NUMBER)
        if os.fork():
            return
    answer = json.dumps(work(reach))
    if last_pid >= 0:
        reach(_OWN_NUMBER)
    os.write(send, answer.encode())


def skip_to(number: int) -> None:
    """Makes the next process started here get a number, if it is near and not passed yet."""
    skipped = 0
    while skipped < _MAX_SKIPPED and _read_last_pid() < number - 1:
        pid = os.fork()
        if not pid:
            os._exit(0)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        skipped += 1


def _read_last_pid() -> int:
    return int(Path("/proc/loadavg").read_text().split()[-1])


def _start(fields: Fields, reach: _Reach) -> int:
    """Starts a placeholder and returns its number, once it looks like its process."""
    program = os.memfd_create("placeholder")
    is_ready, tell = os.pipe()
    try:
        os.write(program, _build_program())
        reach(fields["number"])
        pid = os.fork()
        if not pid:
            try:
                _act(fields, program)
            finally:
                os._exit(1)
    finally:
        os.close(tell)
        os.read(is_ready, 1)  # which ends as `tell` does, when the program is executed
        os.close(is_ready)
        os.close(program)
    name = fields["name"].encode("latin-1")
    _await(lambda: _read_name(pid) == name)
    if fields["is_stopped"]:
        send_signal(pid, signal.SIGSTOP)
    return pid


def _await(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _STOP_S
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _act(fields: Fields, program: int) -> None:
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    for descriptor in range(3, _MAX_DESCRIPTORS):
        with suppress(OSError):
            os.set_inheritable(descriptor, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.setpriority(os.PRIO_PROCESS, 0, max(fields["nice"], 0))
    kernel.give_up_capabilities()
    os.setgroups([])
    os.setresgid(*[fields["gid"]] * 3)
    os.setresuid(*[fields["uid"]] * 3)
    arguments = [argument.encode("latin-1") for argument in fields["arguments"]]
    name = fields["name"].encode("latin-1")
    if not arguments[0]:
        arguments = [name or b"?"]
    os.execve(program, arguments, {b"N": name})  # noqa: S606 (there is no shell to go by)


def _build_program() -> bytes:
    """Returns an ELF program that takes its name from its environment, and waits for ever."""
    machine = os.uname().machine
    if machine not in _PROGRAMS:
        raise OSError(f"no placeholders for processes on {machine}")
    number, code = _PROGRAMS[machine]
    base, header_bytes = 0x40_0000, 64 + 56
    size = header_bytes + len(code)
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    counts = (64, 56, 1, 0, 0, 0)
    start = base + header_bytes
    header = struct.pack("<16sHHIQQQI6H", ident, 2, number, 1, start, 64, 0, 0, *counts)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    return header + segment + code


_PROGRAMS = {
    "x86_64": (
        62,
        bytes.fromhex(
            "488b0424"  # mov rax, [rsp]: the number of arguments
            "488b74c410"  # mov rsi, [rsp + 8 * rax + 16]: "N=name"
            "488d7602"  # lea rsi, [rsi + 2]
            "6a0f5f"  # push 15; pop rdi: PR_SET_NAME
            "b89d000000"  # mov eax, 157: prctl
            "0f05"  # syscall
            "b822000000"  # mov eax, 34: pause
            "0f05"  # syscall
            "ebf7"  # again
        ),
    ),
    "aarch64": (
        183,
        struct.pack(
            "<16I",
            0xF94003E1,  # ldr x1, [sp]: the number of arguments
            0x8B216FE1,  # add x1, sp, x1, lsl 3
            0xF9400821,  # ldr x1, [x1, 16]: "N=name"
            0x91000821,  # add x1, x1, 2
            0xD28001E0,  # mov x0, 15: PR_SET_NAME
            0xD28014E8,  # mov x8, 167: prctl
            0xD4000001,  # svc 0
            0xD2800000,  # mov x0, 0
            0xD2800001,  # mov x1, 0
            0xD2800002,  # mov x2, 0
            0xD2800003,  # mov x3, 0
            0xD2800004,  # mov x4, 0
            0xD2800928,  # mov x8, 73: ppoll
            0xD4000001,  # svc 0
            0x17FFFFF9,  # again
            0xD503201F,  # nop
        ),
    ),
}
