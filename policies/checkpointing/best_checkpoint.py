"""Which of a run's checkpoints is the best by evaluation, under a name of its own.

`checkpoints/best.json` says which it is and what it was measured at. `checkpoints/best` is a link
to it, for people and commands. Both are replaced in one stroke, the file first.
"""

import json
import logging
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from agentpeft.envs.system.whole_files import write_file
from agentpeft.policies.errors import CheckpointError

BEST = "best"
_FILE = "best.json"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BestCheckpoint:
    """The name of a checkpoint's folder, and its success rate on the evaluated tasks."""

    checkpoint: str
    success_rate: float


def read_best(folder: Path) -> BestCheckpoint | None:
    """Returns the best checkpoint in a folder; None where none was evaluated, or it is gone.

    Raises: CheckpointError where the file that names it is damaged.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_bytes())
        best = BestCheckpoint(**{**values, "success_rate": float(values["success_rate"])})
        if not 0 <= best.success_rate <= 1:
            raise ValueError(f"success_rate {best.success_rate} is none")
        is_there = (folder / best.checkpoint).is_dir()
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged: {error}; delete it") from None
    return best if is_there else None


def name_best(checkpoint: Path, success_rate: float) -> None:
    """Names a checkpoint the best of its folder. Raises: CheckpointError.

    A file system without links goes without one: the file names the checkpoint all the same.
    """
    folder = checkpoint.parent
    content = json.dumps(asdict(BestCheckpoint(checkpoint.name, success_rate))).encode()
    try:
        write_file(folder / _FILE, content)
    except OSError as error:
        raise CheckpointError(f"cannot write {error.filename!r}: {error.strerror}") from error
    _link(folder, checkpoint.name)


def _link(folder: Path, name: str) -> None:
    new = folder / f".new-{BEST}"
    try:
        _set_copy_aside(folder)
        new.unlink(missing_ok=True)
        new.symlink_to(name)
        new.replace(folder / BEST)
    except OSError as error:
        logger.warning("%s: no link to %s (%s)", folder / BEST, name, error.strerror)


def _set_copy_aside(folder: Path) -> None:
    """Renames a real folder that has the link's name, as a copy that followed links has it.

    It is kept, for it need not be a copy of what is there. Raises: OSError.
    """
    link = folder / BEST
    if link.is_dir() and not link.is_symlink():
        names = (folder / f"abandoned-{BEST}-{number}" for number in count(1))
        aside = next(path for path in names if not path.exists())
        link.rename(aside)
        logger.warning("%s was a folder and no link: set aside as %s", link, aside.name)


def mend_best(folder: Path) -> None:
    """Takes the name away where the checkpoint that had it is gone, and mends a link.

    A killed run may have left the link at what was the best before. Raises: CheckpointError.
    """
    best, link = read_best(folder), folder / BEST
    if best is None:
        forget_best(folder)
    elif not link.is_symlink() or link.readlink().name != best.checkpoint:
        _link(folder, best.checkpoint)


def forget_best(folder: Path) -> None:
    """Takes the name away, until an evaluation gives it again. Raises: CheckpointError."""
    link = folder / BEST
    try:
        (folder / _FILE).unlink(missing_ok=True)
        if link.is_symlink():
            link.unlink()
        _set_copy_aside(folder)
    except OSError as error:
        raise CheckpointError(f"cannot take {str(link)!r} away: {error.strerror}") from error
