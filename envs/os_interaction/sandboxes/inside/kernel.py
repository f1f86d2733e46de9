"""The few system calls that sandboxes need, and the filter that their shells run under.

Standard library only.
"""

import ctypes
import errno
import functools
import os
import struct

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_ALL = CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | 0x4C00_0000
"""With the namespaces of network, System V IPC and host name."""
MS_NOSUID, MS_NODEV, MS_RDONLY = 2, 4, 1
MS_REC, MS_PRIVATE, MS_MOVE = 0x4000, 0x4_0000, 0x2000
_MNT_DETACH = 2
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETFCAP SETPCAP SYS_CHROOT"
    " NET_BIND_SERVICE AUDIT_WRITE"
)
"""Capabilities of root inside, over what belongs to the sandbox."""
USER_LIMITS = {"MSGQUEUE": 1 << 17, "SIGPENDING": 1 << 10}
"""Limits for all processes of a sandbox of what the kernel counts for each user: bytes of POSIX
message queues, and pending signals. For `resource.RLIMIT_…`."""
NAMESPACE_LIMITS = {
    "max_inotify_instances": 16,
    "max_inotify_watches": 8192,
    "max_fanotify_groups": 16,
    "max_fanotify_marks": 8192,
}
"""The same of what is set for each user namespace, in `/proc/sys/user`."""
_MAX_DESCRIPTORS = 4096
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_SECUREBITS, _PR_SET_CHILD_SUBREAPER = 4, 22, 28, 36
_SECBIT_NO_SETUID_FIXUP = 4
_PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 15, 24, 38
_MAX_CAPABILITIES = 64


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # not at import: Windows cannot


_AUDIT_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_DENIED_CALLS = {
    # keyctl, add_key, request_key, bpf, userfaultfd, perf_event_open, open_by_handle_at, and
    # io_setup, whose requests are counted for the whole machine
    "x86_64": (250, 248, 249, 321, 323, 298, 304, 206),
    "aarch64": (219, 217, 218, 280, 282, 241, 265, 0),
}
_IO_URING_CALLS = (425, 426, 427)
_XATTR_CALLS = {"x86_64": (188, 189, 190, 463), "aarch64": (5, 6, 7, 463)}
"""setxattr and its kin: the memory of ACLs is no sandbox's, and graders know modes alone."""
_SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
_SOCKET_FAMILIES = (1, 2, 10)
"""Unix, IPv4 and IPv6. vsock, for one, would reach past the network namespace, and the memory of
what waits in netlink sockets is no sandbox's."""
_SET_OPTION_CALL = {"x86_64": 54, "aarch64": 208}
_SOL_SOCKET = 1
_FILTER_OPTIONS = (26, 50, 51, 52)
"""SO_ATTACH_FILTER and its kin: their programs share a memory of the whole machine."""
_X32_CALLS = 0x4000_0000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0000 | errno.EPERM
"""SECCOMP_RET_ALLOW, and SECCOMP_RET_ERRNO."""
_UNSUPPORTED, _NO_FAMILY = 0x0005_0000 | errno.EOPNOTSUPP, 0x0005_0000 | errno.EAFNOSUPPORT
"""As of a file system or a kernel without it: `cp -a` and `useradd` know what to do then."""


def unshare(flags: int) -> None:
    """Moves this process into new namespaces. Raises: OSError."""
    _check(_libc().unshare(flags), "unshare")


def enter_namespaces(pid: int, flags: int) -> None:
    """Joins another process's namespaces (for process ids, by later children). Raises: OSError."""
    descriptor = os.pidfd_open(pid)
    try:
        _check(_libc().setns(descriptor, flags), "setns")
    finally:
        os.close(descriptor)


def give_up_capabilities() -> None:
    """Gives up all capabilities of programs executed from now on, as any user. Raises: OSError."""
    _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    for number in range(_MAX_CAPABILITIES):
        _libc().prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails above the kernel's last one


def let_own_namespaces(uid: int) -> None:
    """Makes another uid the owner of root's next user namespace, whose resources count for it.

    Files are still opened as root, and no capability is lost. Raises: OSError.
    """
    _check(_libc().prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0), "prctl")
    os.seteuid(uid)
    _libc().setfsuid(0)  # returns the one before, whether it worked or not


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mounts a file system. Raises: OSError."""
    arguments = [text.encode() for text in (source, target, kind)]
    _check(_libc().mount(*arguments, ctypes.c_ulong(flags), options.encode()), f"mount {kind}")


def unmount(target: str) -> None:
    """Unmounts a file system and all below, as soon as nothing uses it. Raises: OSError."""
    _check(_libc().umount2(target.encode(), _MNT_DETACH), "umount")


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans. Raises: OSError."""
    _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def set_dumpable(is_dumpable: bool) -> None:
    """Sets whether the user's other processes may read this process, and whether /proc shows it.

    Raises: OSError.
    """
    _check(_libc().prctl(_PR_SET_DUMPABLE, int(is_dumpable), 0, 0, 0), "prctl")


def rename_process(name: str) -> None:
    """Gives this process another name, and a command line without arguments."""
    _check(_libc().prctl(_PR_SET_NAME, name.encode(), 0, 0, 0), "prctl")
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if start:  # some kernels do not tell
        ctypes.memmove(
            start, name.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start
        )


def limit_descriptors() -> None:
    """Bounds what this process, and each that it starts, may have open.

    Sockets and polls take memory of the kernel, some of which is counted for no sandbox.
    """
    import resource  # Windows lacks it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most), most))


def apply_filter() -> None:
    """Puts this process and all that it starts under `build_filter`. Raises: OSError."""
    program = build_filter()
    if program:
        code = ctypes.create_string_buffer(program)
        address = ctypes.addressof(code)
        header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, address))
        _check(_libc().prctl(_PR_SET_SECCOMP, 2, header), "prctl")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def build_filter() -> bytes:
    """Returns a seccomp program: calls that reach past namespaces, or past limits, fail.

    Empty on machines whose call numbers it does not know.
    """
    machine = os.uname().machine
    if machine not in _AUDIT_ARCHITECTURES:
        return b""
    # Each instruction is (operation, jump if true, jump if false, operand); jumps count the
    # instructions to skip. In seccomp_data, the call's number is at byte 0, the architecture at 4
    # and the arguments at 16, 24 and 32.
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, 0),
        (_JUMP_AT_LEAST, 0, 1, _X32_CALLS),  # the same calls by other numbers, not listed below
        (_RETURN, 0, 0, _REFUSE),
    ]
    for call in (*_DENIED_CALLS[machine], *_IO_URING_CALLS):
        code += [(_JUMP_EQUAL, 0, 1, call), (_RETURN, 0, 0, _REFUSE)]
    for call in _XATTR_CALLS[machine]:
        code += [(_JUMP_EQUAL, 0, 1, call), (_RETURN, 0, 0, _UNSUPPORTED)]
    # Of setsockopt(), no filters; a match jumps over what allows the call.
    num_options = len(_FILTER_OPTIONS)
    code += [(_JUMP_EQUAL, 0, num_options + 5, _SET_OPTION_CALL[machine]), (_LOAD, 0, 0, 24)]
    code += [(_JUMP_EQUAL, 0, num_options + 1, _SOL_SOCKET), (_LOAD, 0, 0, 32)]
    for i, option in enumerate(_FILTER_OPTIONS):
        code.append((_JUMP_EQUAL, num_options - i, 0, option))
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    # Of socket(), only some families; a match jumps over the refusal to the last instruction.
    num_families = len(_SOCKET_FAMILIES)
    code += [(_JUMP_EQUAL, 1, 0, _SOCKET_CALL[machine]), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, 16)]
    for i, family in enumerate(_SOCKET_FAMILIES):
        code.append((_JUMP_EQUAL, num_families - i, 0, family))
    code += [(_RETURN, 0, 0, _NO_FAMILY), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)
