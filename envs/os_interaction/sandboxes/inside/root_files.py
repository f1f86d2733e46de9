"""How the image's files are laid out for bubblewrap: `unpack`, which runs in its helper.

`root` holds the image. `guard` lies over an episode's files while a check runs: what the loader,
the shell and the interpreters are and take their orders from, as hard links into `root`.
Standard library only.
"""

import os
import shutil
from contextlib import suppress

FULL = [
    *("lib", "lib32", "lib64", "libx32", "usr/lib", "usr/lib32", "usr/lib64", "usr/libx32"),
    *("usr/libexec", "usr/local/lib", "etc/alternatives", "etc/ld.so.conf.d", "etc/pam.d"),
    *("etc/perl", "etc/python3", "dev"),
]
"""Folders of which a check sees nothing but the image's."""
NAMED = ["bin", "sbin", "usr/bin", "usr/sbin"]
"""Folders where the image's names win and others are seen."""
FILES = ["etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.preload", "etc/nsswitch.conf"]
_EMPTY = ["proc", "sys", "etc"]
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def unpack(folder: int, tar: int) -> None:
    """Makes `root` and `guard` in a folder from an image's tar, both by descriptor.

    Raises: OSError, and leaves nothing.
    """
    with suppress(PermissionError):
        os.chown(folder, 0, 0)
    os.fchdir(folder)
    try:
        _unpack_tar(tar)
        _add_devices()
        _make_guard()
    except OSError:
        for name in ("root", "guard"):
            shutil.rmtree(name, ignore_errors=True)
        raise


def _unpack_tar(tar: int) -> None:
    os.mkdir("root", 0o755)
    command = ["tar", "-x", "--numeric-owner", "--exclude=./dev/*", "--exclude=dev/*", "-C", "root"]
    pid = os.posix_spawnp(
        "tar", command, dict(os.environ), file_actions=[(os.POSIX_SPAWN_DUP2, tar, 0)]
    )
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    missing = [path for path in ("bin/bash", "usr/bin/python3") if not _exists(f"root/{path}")]
    if code or missing:
        raise OSError(f"tar ended with {code}; missing of the image: {missing or 'nothing'}")
    os.chmod("root", 0o755)  # noqa: S103 (a root directory)


def _exists(path: str) -> bool:
    return os.path.lexists(path)


def _add_devices() -> None:
    """Makes what devices are bound to, so that /dev is under the limits of the other files."""
    os.makedirs("root/dev/shm", exist_ok=True)
    os.chmod("root/dev/shm", 0o1777)  # noqa: S103 (for all users)
    os.makedirs("root/proc", exist_ok=True)
    for name in DEVICES:
        os.close(os.open(f"root/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
    for name, target in _LINKS.items():
        os.symlink(target, f"root/dev/{name}")


def _make_guard() -> None:
    os.mkdir("guard", 0o755)
    for path in _EMPTY:
        os.makedirs(f"guard/{path}", exist_ok=True)
    folders = [*FULL, *(f"etc/{n}" for n in os.listdir("root/etc") if n.startswith("python3."))]
    for path in folders:
        _link_tree(path)
        if os.path.isdir(f"guard/{path}") and not os.path.islink(f"guard/{path}"):
            os.setxattr(f"guard/{path}", "user.overlay.opaque", b"y")
    for path in (*NAMED, *FILES):
        _link_tree(path)
    if not _exists("guard/etc/ld.so.preload"):
        os.close(os.open("guard/etc/ld.so.preload", os.O_CREAT, 0o644))


def _link_tree(path: str) -> None:
    """Repeats a file or folder of `root` in `guard`, without a byte of content."""
    source, target = f"root/{path}", f"guard/{path}"
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copytree(source, target, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
    elif _exists(source):
        os.link(source, target)
