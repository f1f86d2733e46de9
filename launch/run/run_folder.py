"""Which settings a run has, and the folder that holds what it writes."""

import fcntl
import logging
import os
import shlex
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import did_you_mean
from agentpeft.envs.registration import is_env_id
from agentpeft.envs.system.whole_files import naming_file, recover
from agentpeft.launch.run.ray_folder import is_in_ray_copy
from agentpeft.policies.checkpointing.checkpoints import (
    CONFIG_FILE,
    MANIFEST_FILE,
    STATE_FILE,
    cannot_write,
    list_checkpoints,
    make_dated_folder,
    write_config,
)
from agentpeft.policies.checkpointing.reading import (
    check_policy,
    latest_checkpoint,
    read_checkpoint,
    read_config,
    read_state,
    settings_of,
    use_module_folders,
)
from agentpeft.policies.delivery.adapter_files import MODEL_CONFIG, is_whole_model
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.settings.config import SECTIONS, Settings, setting_names
from agentpeft.policies.settings.toml import (
    PRETRAINED,
    describe_pretrained,
    merge_settings,
    read_toml,
    with_overrides,
)
from agentpeft.policies.settings.wrong_settings import unknown_setting

logger = logging.getLogger(__name__)
CONFIGS = Path(__file__).parents[1] / "configs"
OUTPUT_VARIABLE = "AGENTPEFT_OUTPUT_DIR"
_LOCK_FILE = "run.lock"
_LOCK_WAIT_S = 0.1
_MAX_DEPTH = 3
"""From a folder down to a run: `./outputs/<experiment>/<timestamp>`."""


@dataclass(frozen=True)
class Start:
    """The settings of a run, and what it goes on from; both paths are None for a new one."""

    settings: Settings
    run_dir: Path | None = None
    checkpoint: Path | None = None


def read_start(configs: Sequence[str], overrides: Sequence[str]) -> Start:
    """Returns a new run's settings, of configs' names or paths, or ids; a later one wins.

    Raises: SettingsError.
    """
    values: dict[str, Any] = {}
    for place, config in enumerate(configs):
        try:
            new = _read_config(config)
        except SettingsError as error:
            if place > 0:
                raise SettingsError(f"{error}; an override is written section.name=value") from None
            raise
        values = merge_settings(values, new)
    settings = Settings(**with_overrides(values, overrides))
    if PRETRAINED in values and not settings.is_tiny:
        logger.info("a pretrained model: %s", describe_pretrained(values, overrides))
    return Start(settings)


def _read_config(config: str) -> dict[str, Any]:
    """Returns a file's nested settings; of an environment's id the one that it stands for."""
    if is_env_id(config):
        return {"environment": {"id": config}}
    path = find_config(config)
    if path.name == CONFIG_FILE and path.is_file():
        use_module_folders(path.parent)
    return read_toml(path, CONFIGS)


def find_config(config: str, folder: Path = CONFIGS, kind: str = "config") -> Path:
    """Returns the path of a built-in file of a folder, or of a TOML file. Raises: SettingsError."""
    path = Path(config)
    if path.suffix == ".toml":
        return path
    names = sorted(file.stem for file in folder.glob("*.toml"))
    if config not in names:
        if _is_run(path):
            raise SettingsError(
                f"{config!r} is a run, no {kind}: `agentpeft train --resume {config}` continues "
                f"it, and its settings are {path / CONFIG_FILE}"
            )
        if path.is_dir() or len(path.parts) > 1:
            raise SettingsError(f"unknown {kind}, and {say_no_run(path)}")
        raise SettingsError(f"unknown {kind} {config!r}{did_you_mean(config, names)}")
    return folder / f"{config}.toml"


def list_configs(folder: Path = CONFIGS) -> dict[str, str]:
    """Returns the first line of each built-in config's comment, by the config's name."""
    paths = sorted(folder.glob("*.toml"))
    return {p.stem: p.read_text("utf-8").partition("\n")[0].removeprefix("# ") for p in paths}


def find_run(path: Path) -> Path | None:
    """Returns the run's folder where `path` is one, a checkpoint in one, or its adapter's folder.

    None where it is none of these, as an adapter that lies elsewhere.
    """
    if not path.is_dir():
        return None
    above = path.resolve().parents
    folders = [path, *(f.parent for f in above[:2] if f.name == "checkpoints")]
    return next((folder for folder in folders if (folder / CONFIG_FILE).is_file()), None)


def find_adapter(path: Path) -> Path:
    """Returns an adapter's folder: itself, a checkpoint's, or that of a run's newest checkpoint.

    Of a run on all weights it is a whole model's. Raises: SettingsError where there is none,
    CheckpointError where it is not as the run has written it.
    """
    runs = [latest_checkpoint(p) for p in [path / "checkpoints"] if p.is_dir()]
    for folder in (path, path / "adapter", *(run / "adapter" for run in runs)):
        if (folder / ADAPTER_CONFIG).is_file() or is_whole_model(folder):
            check_policy(folder)
            return folder.resolve()
    for run in runs:
        read_checkpoint(run)
    raise SettingsError(
        f"{path} is no adapter, whole model, checkpoint or run (no {ADAPTER_CONFIG}, no "
        f"{MODEL_CONFIG})"
    )


def say_no_run(path: Path, lacks: str = CONFIG_FILE) -> str:
    """Returns what to say of a path that is no run's folder, with the one that may be meant.

    `lacks` is the file that a run's folder has and this one has not.
    """
    text = f"no run in {str(path)!r}"
    if not path.exists():
        return f"{text}: there is no such folder"
    above = next((folder for folder in path.resolve().parents if _is_run(folder)), None)
    if above is not None:
        return f"{text}, which is a part of the run {shown(above)}"
    runs = (
        file.parent
        for depth in range(1, _MAX_DEPTH + 1)
        for file in path.glob("*/" * depth + CONFIG_FILE)
        if _is_run(file.parent)
    )
    newest = max(runs, key=lambda folder: (folder / CONFIG_FILE).stat().st_mtime_ns, default=None)
    if newest is not None:
        return f"{text} itself; the newest one below it is {newest}"
    return f"{text}: a run's folder has a {lacks}"


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and (folder / "checkpoints").is_dir()


def read_resumed(folder: Path, overrides: Sequence[str]) -> Start:
    """Returns how a run goes on, from its folder or one checkpoint's, with settings changed.

    Nothing is written. Raises: SettingsError (no run; a file of settings that was edited; a
    setting that may not change), CheckpointError.
    """
    has_files = any((folder / name).is_file() for name in (STATE_FILE, MANIFEST_FILE))
    is_checkpoint = has_files or folder.name.startswith("checkpoint-")
    run_dir = folder.resolve().parents[1] if is_checkpoint else folder.resolve()
    if not (run_dir / CONFIG_FILE).is_file():
        raise SettingsError(f"--resume {folder}: {say_no_run(folder)}")
    for override in overrides:
        name = override.partition("=")[0].strip()
        if ".".join(name.split(".")[:2]) not in setting_names():
            raise unknown_setting(name)
        if not _may_change(name):
            nearest = get_close_matches(name, _list_changeable(), n=5, cutoff=0.0)
            raise SettingsError(
                f"--resume may not change {name!r}; it may change {', '.join(nearest)} and others "
                "(docs/training/settings.md)"
            )
    before = read_config(run_dir)
    if not (is_checkpoint or list_checkpoints(run_dir / "checkpoints")):
        raise SettingsError(f"--resume {folder}: the run has no checkpoint, so begin a new one")
    checkpoint = folder.resolve() if is_checkpoint else latest_checkpoint(run_dir / "checkpoints")
    state = read_state(read_checkpoint(checkpoint))
    _check_same(before, settings_of(state), checkpoint)
    settings = Settings(**with_overrides(before.model_dump(), overrides))
    if settings.training.num_iterations < state["iteration"]:
        raise SettingsError(
            f"training.num_iterations {settings.training.num_iterations} is below what "
            f"{checkpoint.name} has done ({state['iteration']}): go on from an older checkpoint"
        )
    return Start(settings, run_dir, checkpoint)


def _may_change(name: str) -> bool:
    """Returns whether a run may go on with another value of a setting, or of a keyword of one."""
    section, _, key = name.partition(".")
    owner = SECTIONS.get(section, Settings)
    key = key.partition(".")[0] if section in SECTIONS else section
    return key in owner.model_fields and owner.may_change(key)


def _list_changeable() -> list[str]:
    """Returns what a run may go on with other values of; a dot at the end is a whole section."""
    whole = tuple(f"{name}." for name, section in SECTIONS.items() if section.whole_may_change)
    single = (name for name in setting_names() if _may_change(name) and not name.startswith(whole))
    return [*whole, *single]


def _find_differences(
    before: dict[str, Any], after: dict[str, Any]
) -> Iterator[tuple[str, object, object]]:
    """Yields the dotted name of each setting that two dumps differ in, and both values."""
    for name in setting_names():
        section, _, key = name.rpartition(".")
        old, new = (
            (side.get(section, {}) if section else side).get(key) for side in (before, after)
        )
        if old != new:
            yield name, old, new


def _check_same(settings: Settings, saved: dict[str, Any], checkpoint: Path) -> None:
    """Raises: SettingsError where a checkpoint was made with settings that no resume changes."""
    for name, old, new in _find_differences(saved, settings.model_dump(mode="json")):
        if not _may_change(name) and name != "output.dir":
            raise SettingsError(
                f"{checkpoint} was made with {name} = {old!r}, {CONFIG_FILE} has {new!r}"
            )


def change_settings(start: Start) -> None:
    """Writes the settings of a run that goes on with others, and logs each change."""
    assert start.run_dir  # noqa: S101 (it goes on, so it has one)
    before = read_config(start.run_dir)
    changes = list(_find_differences(before.model_dump(), start.settings.model_dump()))
    for name, old, new in changes:
        logger.info("goes on with %s = %r (was %r)", name, new, old)
    if changes:
        write_config(start.run_dir, start.settings)


def _lock(file: IO[bytes]) -> bool:
    """Locks a file and returns whether it could, within `_LOCK_WAIT_S`.

    It waits since `agentpeft watch`, to see whether a run goes on, has the lock for an instant.
    """
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
        else:
            return True


@contextmanager
def lock_run(run_dir: Path) -> Iterator[None]:
    """Holds a run's folder, so that no other process writes into it; a killed one lets go.

    What a killed one had half written is undone.
    Other machines are kept out only where their shared file system locks (NFS 4 does).
    Raises: SettingsError while another process runs it.
    """
    with (run_dir / _LOCK_FILE).open("a+b", buffering=0) as file:
        if not _lock(file):
            file.seek(0)
            holder = file.read().decode().strip() or "another process"
            raise SettingsError(f"{run_dir} is being trained already, by {holder}")
        with naming_file(run_dir / _LOCK_FILE):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        for folder in (run_dir, run_dir / "checkpoints", run_dir / "logs"):
            recover(folder)
        yield


def is_held(run: Path) -> bool:
    """Returns whether a process trains in a run's folder (as far as its file system tells)."""
    lock = run / _LOCK_FILE
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:  # for an instant, and only once nobody has it
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def make_run_dir(settings: Settings) -> Path:
    """Makes `dir`/<experiment>/<timestamp> with its folders and `config.toml`.

    Raises: SettingsError where nothing can be written.
    """
    base = output_base(Path(settings.output.dir)) / settings.experiment
    run_dir = make_dated_folder(base)
    try:
        fill_run_dir(run_dir, settings)
    except OSError as error:
        raise cannot_write(base, error) from None
    return run_dir


def fill_run_dir(run_dir: Path, settings: Settings) -> None:
    """Makes what a new run's folder holds before it begins. Raises: OSError."""
    for name in ("checkpoints", "sessions", "logs"):
        (run_dir / name).mkdir()
    write_config(run_dir, settings)


def output_base(path: Path, is_told: bool = True) -> Path:
    """Returns where a relative `output.dir` lies, and, if `is_told`, logs where it is moved.

    Below AGENTPEFT_OUTPUT_DIR; without it the present folder, or the home folder where the present
    one is Ray's temporary copy of it, in which nothing would be found again.
    Raises: SettingsError for what is no path.
    """
    if "\0" in str(path):
        raise SettingsError(f"output.dir {str(path)!r} is no path: it has a NUL character")
    try:
        path = path.expanduser()
    except RuntimeError:
        raise SettingsError(f"output.dir {str(path)!r}: there is no such user") from None
    base = Path.home() if is_in_ray_copy(Path.cwd()) else Path.cwd()
    base = Path(os.environ.get(OUTPUT_VARIABLE) or base)
    if is_told and base != Path.cwd() and not path.is_absolute():
        logger.info("output.dir %s lies in %s (%s changes that)", path, base, OUTPUT_VARIABLE)
    return (base / path).absolute()


@contextmanager
def log_to(run_dir: Path) -> Iterator[None]:
    """Appends the package's log lines to `logs/train.log` inside the block."""
    (run_dir / "logs").mkdir(exist_ok=True)  # a run may be copied without them
    package = logging.getLogger("agentpeft")
    handler = logging.FileHandler(run_dir / "logs" / "train.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)
        handler.close()


def shown(path: Path) -> str:
    """Returns a path as a reader of the present folder would write it."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def as_word(path: Path) -> str:
    """Returns a path as a reader of the present folder would type it in a shell."""
    return shlex.quote(shown(path))
