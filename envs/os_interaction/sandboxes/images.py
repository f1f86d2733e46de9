"""The image as a folder for bubblewrap: `prepare_root`, once for each content, then cached."""

import hashlib
import os
import shutil
import time
from pathlib import Path

from agentpeft.envs.core.errors import EnvFault, SettingsError
from agentpeft.envs.os_interaction.sandboxes.helper_process import HelperProcess, Identity
from agentpeft.envs.system import processes
from agentpeft.envs.system.whole_files import making, write_file

IMAGE_FOLDER = Path(__file__).parents[1] / "image"
DEFAULT_IMAGE = "agentpeft/os-interaction"
"""The default image's name in docker; `image/Dockerfile` makes it."""
_LAYOUT = "4"
_SETTLE_S = 0.3
"""Least age of an image at an episode's start: later times of change are the episode's."""


def prepare_root(image: str | None, identity: Identity) -> Path:
    """Returns the folder with an image's `root` and `guard`, unpacking them at need.

    `image` is a tar's path, the name of an image that docker has, or None for the default one.
    Raises: EnvFault, SettingsError.
    """
    import fcntl  # not on Windows, where docker needs other things of this module

    cache = _find_cache()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tar = _find_tar(cache, image)
        key = f"{_hash_file(cache, tar)}-{identity.first_uid}-{identity.first_gid}-{_LAYOUT}"
        unpacked = cache / "unpacked"
        unpacked.mkdir(mode=0o700, exist_ok=True)  # it has setuid programs of the sandboxes' ids
        folder = unpacked / key
        if not folder.exists():
            _unpack(tar, folder, identity)
    return folder


def _find_cache() -> Path:
    """Returns the folder of unpacked images; the ids of sandboxes must reach into root's."""
    if os.geteuid() == 0:
        base = Path("/var/cache")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / "agentpeft" / "os_interaction"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _find_tar(cache: Path, image: str | None) -> Path:
    image = image or os.environ.get("AGENTPEFT_OS_TAR")
    if not image:
        return _make_default(cache)
    if Path(image).is_file():
        return Path(image)
    if image.endswith(".tar") or image.startswith("/"):
        raise SettingsError(f"no such image file: {image!r}")
    return _export_from_docker(cache, image)


def _export_from_docker(cache: Path, image: str) -> Path:
    from agentpeft.envs.system.containers import export_image

    image_id, chunks = export_image(image)
    tar = cache / f"docker-{image_id.rpartition(':')[2]}.tar"
    if not tar.exists():
        with making(tar) as new, new.open("wb") as file:
            file.writelines(chunks)
    return tar


def _make_default(cache: Path) -> Path:
    """Makes the default image by debootstrap, if this version of it is not there yet."""
    script = IMAGE_FOLDER / "make_root.sh"
    recipe = script.read_bytes() + (IMAGE_FOLDER / "packages.txt").read_bytes()
    tar = cache / f"debian-{hashlib.sha256(recipe).hexdigest()[:16]}.tar"
    if not tar.exists():
        code, output = processes.run(["/bin/sh", str(script), str(tar)])
        if code:
            raise EnvFault(
                f"the default image cannot be made ({output}): run {script} FILE.tar as root and "
                "name FILE.tar as the image (or set AGENTPEFT_OS_TAR), or name an image of docker"
            )
    return tar


def _hash_file(cache: Path, path: Path) -> str:
    """Returns a file's hash, remembered for as long as it has the same size and time."""
    status = path.stat()
    facts = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    note = cache / f"hash-{hashlib.sha256(facts.encode()).hexdigest()[:32]}"
    if not note.exists():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        write_file(note, digest.hexdigest()[:32].encode())
    return note.read_text()


def _unpack(tar: Path, folder: Path, identity: Identity) -> None:
    """Unpacks an image; `folder` appears whole or not at all.

    Not by `making`: the sandboxes' ids, which own the files, could not enter its folder.
    """
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o755, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(unfinished, identity.first_uid, identity.first_gid)
    with tar.open("rb") as file:
        config: dict[str, object] = {"folder": str(unfinished), "tar": file.fileno()}
        HelperProcess(config, identity, [file.fileno()]).close()
    unfinished.rename(folder)
    time.sleep(_SETTLE_S)
