"""Which settings a run has, and the folder that holds what it writes."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentpeft.envs import SettingsError
from agentpeft.envs.errors import did_you_mean
from agentpeft.launch.ray_session import is_in_ray_copy
from agentpeft.policies.checkpoints import CONFIG_FILE, STATE_FILE, latest_checkpoint
from agentpeft.policies.config import Settings

logger = logging.getLogger(__name__)
CONFIGS = Path(__file__).parent / "configs"
OUTPUT_VARIABLE = "AGENTPEFT_OUTPUT_DIR"
_MAY_CHANGE = "training.num_iterations"


@dataclass(frozen=True)
class Start:
    """The settings of a run, and what it goes on from; both paths are None for a new one."""

    settings: Settings
    run_dir: Path | None = None
    checkpoint: Path | None = None


def read_start(config: str, overrides: Sequence[str]) -> Start:
    """Returns a new run's settings, of a config's name or path. Raises: SettingsError."""
    path = Path(config)
    if path.suffix != ".toml":
        names = sorted(found.stem for found in CONFIGS.glob("*.toml"))
        if config not in names:
            raise SettingsError(f"unknown config {config!r}{did_you_mean(config, names)}")
        path = CONFIGS / f"{config}.toml"
    return Start(Settings.from_toml(path, overrides))


def read_resumed(folder: Path, overrides: Sequence[str]) -> Start:
    """Returns how a run goes on, from its folder or one checkpoint's.

    Raises: SettingsError (no run; another setting than the number of iterations), CheckpointError.
    """
    is_checkpoint = (folder / STATE_FILE).is_file()
    run_dir = folder.resolve().parents[1] if is_checkpoint else folder.resolve()
    if not (run_dir / CONFIG_FILE).is_file():
        raise SettingsError(f"--resume {folder}: no run there (no {CONFIG_FILE})")
    for override in overrides:
        if override.partition("=")[0].strip() != _MAY_CHANGE:
            raise SettingsError(f"--resume may change {_MAY_CHANGE} only, got {override!r}")
    settings = Settings.from_toml(run_dir / CONFIG_FILE, overrides)
    checkpoint = folder.resolve() if is_checkpoint else latest_checkpoint(run_dir / "checkpoints")
    return Start(settings, run_dir, checkpoint)


def make_run_dir(settings: Settings) -> Path:
    """Makes `dir`/<experiment>/<timestamp> with its folders and `config.toml`.

    Raises: SettingsError where nothing can be written.
    """
    base = output_base(Path(settings.output.dir).expanduser()) / settings.experiment
    stamp = time.strftime("%Y%m%d-%H%M%S")
    try:
        run_dir = _make_new(base, stamp)
        for name in ("checkpoints", "sessions", "logs"):
            (run_dir / name).mkdir()
        (run_dir / CONFIG_FILE).write_text(settings.to_toml(), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"output.dir: cannot write into {base}: {error.strerror}") from None
    return run_dir


def output_base(path: Path) -> Path:
    """Returns where a relative `output.dir` lies.

    Below AGENTPEFT_OUTPUT_DIR; without it the present folder, or the home folder where the present
    one is Ray's temporary copy of it, in which nothing would be found again.
    """
    base = Path.home() if is_in_ray_copy(Path.cwd()) else Path.cwd()
    base = Path(os.environ.get(OUTPUT_VARIABLE) or base)
    if base != Path.cwd() and not path.is_absolute():
        logger.info("output.dir %s lies in %s (%s changes that)", path, base, OUTPUT_VARIABLE)
    return (base / path).absolute()


def _make_new(base: Path, stamp: str) -> Path:
    for number in range(1, 1000):
        run_dir = base / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            if not base.is_dir():
                raise
            continue
        return run_dir
    raise FileExistsError(17, f"too many runs of {stamp}", str(base))


@contextmanager
def log_to(run_dir: Path) -> Iterator[None]:
    """Appends the package's log lines to `logs/train.log` inside the block."""
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
