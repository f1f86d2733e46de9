"""Files that settings name, brought to the machines that lack them: no disk need be shared.

An actor on another machine than the driver's says what it lacks. That reaches it through Ray's
object store, lies in its cache under the SHA-256 of the content, and is named so by the settings
that it works with. What it saves names the base as the driver does.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.delivery.adapter_files import BASE_NAME, rename_base
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.messages import Ref
from agentpeft.policies.models.tiny_cache import CACHE_VARIABLE, cache_dir, load_tiny
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.named_files import files_of, find_path, hash_files, rename_files

Contents: TypeAlias = Mapping[str, Mapping[str, bytes]]
"""By the driver's path of a file or folder: its files by relative name, "." of a single file."""


@dataclass(frozen=True)
class FilesToSend:
    """What settings name on the driver's machine.

    `paths` are by the settings' names, `hashes` by path, `bases` are those of adapters, by path.
    `tiny` is the folder of the built-in model, None where it is not used. `contents` are references
    to what the machine that it goes to lacks.
    """

    paths: Mapping[str, str]
    hashes: Mapping[str, str]
    bases: Mapping[str, str]
    tiny: str | None
    contents: Sequence[Ref] = ()

    @classmethod
    def of(cls, settings: Settings) -> "FilesToSend":
        """Returns what is named on this machine, where the built-in model is made if need be.

        So all machines have the same one. Raises: SettingsError for what cannot be read.
        """
        names: list[str] = []

        def note(name: str) -> str:
            names.append(name)
            return name

        rename_files(settings, note)
        paths = {name: str(path) for name in names if (path := find_path(name))}
        bases = {path: base for path in paths.values() if (base := _base_of(Path(path)))}
        tiny = load_tiny(settings).name if settings.is_tiny else None
        with _naming_what_cannot_be_read():
            hashes = {path: hash_files(Path(path)) for path in (*bases.values(), *paths.values())}
        return cls(paths, hashes, bases, tiny)

    def find_lacking(self) -> list[str]:
        """Returns the driver's paths of what is neither on this machine nor in its cache."""
        places = self._find_places()
        return [path for path, place in places.items() if not Path(place).exists()]

    def unpack(
        self, brought: Sequence[Contents], settings: Settings
    ) -> tuple[Settings, dict[str, str]]:
        """Writes what is lacking, and returns the settings as they are to be here.

        Also returns the place of each of the driver's paths. Raises: SettingsError.
        """
        places = self._find_places()
        try:
            for path, files in (item for contents in brought for item in contents.items()):
                _write(files, Path(places[path]), places)
        except OSError as error:
            raise SettingsError(
                f"the cache {cache_dir()} cannot be written ({error}); set {CACHE_VARIABLE}"
            ) from None
        here = {name: places[path] for name, path in self.paths.items()}
        return rename_files(settings, lambda name: here.get(name, name)), places

    def _find_places(self) -> dict[str, str]:
        """Returns where each path's files are on this machine, or will be."""
        places: dict[str, str] = {}
        for path in sorted(self.hashes, key=lambda path: path in self.bases):
            base = self.bases.get(path)
            is_same = Path(path).exists() and hash_files(Path(path)) == self.hashes[path]
            if is_same and (base is None or places[base] == base):
                places[path] = path
            else:
                folder = cache_dir() / "brought" / self.hashes[path][:16]
                places[path] = str(folder / Path(path).name)
        if self.tiny is not None:
            places[self.tiny] = str(cache_dir() / Path(self.tiny).name)
        return places


def read_contents(paths: Sequence[str]) -> Contents:
    """Returns the files of paths of this machine. Raises: SettingsError."""
    with _naming_what_cannot_be_read():
        return {
            path: {str(file.relative_to(path)): file.read_bytes() for file in files_of(Path(path))}
            for path in paths
        }


def _base_of(adapter: Path) -> str | None:
    """Returns the folder of an adapter's base; None for what is no adapter, and for hub ids."""
    try:
        named = json.loads((adapter / ADAPTER_CONFIG).read_bytes()).get(BASE_NAME)
    except (OSError, ValueError, AttributeError):
        return None
    return named if isinstance(named, str) and Path(named).is_dir() else None


def _write(files: Mapping[str, bytes], place: Path, names: Mapping[str, str]) -> None:
    """Writes a file or folder in one stroke, unless it is there; another actor may be first."""
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with making(place, kind=place.name) as new:
            for name, content in rename_base(files, names).items():
                file = new / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
    except OSError:
        if not place.exists():
            raise


@contextmanager
def _naming_what_cannot_be_read() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(f"{error.filename!r} cannot be read: {error.strerror}") from None
