"""The layout of the image's files for bubblewrap: `unpack`, which runs in its helper.

`root` holds the image. `guard` lies over an episode's files while a check runs: what the loader,
the shell and the interpreters are and take their orders from, as hard links into `root`.
Standard library only.
"""

import os
import shutil
import stat
from contextlib import suppress

FULL = [
    *("lib", "lib32", "lib64", "libx32", "usr/lib", "usr/lib32", "usr/lib64", "usr/libx32"),
    *("usr/libexec", "usr/local/lib", "etc/alternatives", "etc/ld.so.conf.d", "etc/pam.d"),
    *("etc/perl", "etc/python3", "dev"),
    *("usr/share/perl", "usr/share/perl5", "usr/local/share/perl", "usr/share/awk"),
    *("usr/share/python3", "usr/share/debconf", "usr/share/dpkg", "usr/share/vim"),
    *("usr/share/file", "usr/share/misc", "usr/share/locale", "usr/share/locale-langpack"),
    *("usr/include", "usr/local/include", "usr/x86_64-linux-gnu", "usr/aarch64-linux-gnu"),
]
"""Folders of which a check sees nothing but the image's; gcc looks for `as` in the last two."""
NAMED = ["bin", "sbin", "usr/bin", "usr/sbin"]
"""Folders where the image's names win, of whichever of these it has them in, and others are seen:
an episode's `/usr/sbin/grep` would run in place of `/usr/bin/grep`."""
_PYTHON_PLACES = ("usr/", "usr/local/")
_PYTHON_FILES = ("pyvenv.cfg", "bin/pyvenv.cfg", "bin/pybuilddir.txt", "bin/lib", "bin/Modules")
FILES = [
    *("etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.preload", "etc/nsswitch.conf"),
    *("etc/magic", "etc/magic.mgc", "etc/magic.mime", "etc/ssl/openssl.cnf"),
    *("pyvenv.cfg", *(f"{place}{name}" for place in _PYTHON_PLACES for name in _PYTHON_FILES)),
]
"""Files that a check sees as the image has them. Python takes its library from where the last ones
are or say, even with `-I`."""
_HOME = "/root"
_IN_HOME = (".vim", ".vimrc", "_vimrc", ".exrc", ".magic", ".magic.mgc", ".less", ".lesskey")
START_FILES = [
    *(f"{_HOME}/{name}" for name in (*_IN_HOME, ".config/lesskey", ".local/lib")),
    *("/etc/vim", "/var/lib/vim"),
    *("/etc/sysless", "/etc/syslesskey", "/etc/lesskey", "/usr/local/etc/lesskey"),
]
"""What `vim`, `file`, `less` and `env -i python3` read unasked: a check sees an episode's only if
its script names them, since they may be what a task is about."""
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
    """Makes the files that devices are bound to, so that /dev has the limits of other files."""
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
    pythons = (f"usr/bin/{n}._pth" for n in os.listdir("root/usr/bin") if n.startswith("python3"))
    for path in (*NAMED, *FILES, *pythons):
        _link_tree(path)
    places = [path for path in NAMED if os.path.isdir(f"root/{path}")]
    names = {name for path in places for name in os.listdir(f"root/{path}")}
    for path in places:
        if not os.path.islink(f"root/{path}"):
            for name in names.difference(os.listdir(f"root/{path}")):
                _link_tree(f"{path}/{name}")


def _link_tree(path: str) -> None:
    """Repeats a file or folder of `root` in `guard`, without a byte of content.

    A path missing in `root`, whose folder is there, hides the episode's.
    """
    source, target = f"root/{path}", f"guard/{path}"
    if not _exists(os.path.dirname(source)):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
    elif _exists(source):
        os.link(source, target)
    else:
        os.mknod(target, stat.S_IFCHR)  # a whiteout of overlayfs: device 0/0
