"""The files of a run's episodes, `sessions/NAME.jsonl`, in parts where they grow large.

Lines are appended to NAME.jsonl. Once that is longer than a part may be, it becomes
NAME.000001.jsonl (then .000002, …), and the next lines begin a new NAME.jsonl; the oldest parts are
deleted where there are too many. A part ends with an iteration. Readers take all, in order.
"""

import json
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import EpisodeRecord, TokenRecord

logger = logging.getLogger(__name__)
SESSIONS = "sessions"
"""A run's folder of these files."""
_MAX_BYTES = 2**28
"""Of a part: what an editor still opens."""
_NUM_PARTS_KEPT = 16  # of each name: 4 GiB
_PART = re.compile(r"(.+)\.(\d{6})\.jsonl")


def list_parts(path: Path) -> list[Path]:
    """Returns the files of `sessions/NAME.jsonl` that are there, oldest first, itself the last."""
    parts = [each for each in path.parent.glob(f"{path.stem}.*.jsonl") if _is_part_of(each, path)]
    return [*sorted(parts), *([path] if path.is_file() else [])]


def whole_name(path: Path) -> str:
    """Returns NAME.jsonl for a part of it, and any other file's own name."""
    match = _PART.fullmatch(path.name)
    return f"{match[1]}.jsonl" if match else path.name


def number_parts(path: Path) -> list[tuple[int, Path]]:
    """Returns the same with their numbers; that of NAME.jsonl is the one it would get as a part."""
    numbered = [(_number(part), part) for part in list_parts(path) if part != path]
    newest = numbered[-1][0] if numbered else 0
    return [*numbered, *([(newest + 1, path)] if path.is_file() else [])]


def append_episodes(
    path: Path,
    iteration: int,
    records: Iterable[EpisodeRecord | TokenRecord],
    max_bytes: float = float("inf"),
    num_kept: int = 2,
) -> None:
    """Appends one JSON line per episode; then begins a new file if this one has `max_bytes`.

    The `num_kept` newest files are kept. A folder that was deleted since the run began is made
    again, and what is lost with it said. Raises: CheckpointError.
    """
    try:
        if not path.parent.exists():
            path.parent.mkdir()
            logger.warning("%s was deleted, with all episodes so far: made again", path.parent)
        with path.open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps({"iteration": iteration, **asdict(record)}) + "\n")
        if path.stat().st_size >= max_bytes:
            path.rename(_part(path, number_parts(path)[-1][0]))
            for part in list_parts(path)[: 1 - num_kept]:
                part.unlink()
    except OSError as error:
        raise CheckpointError(f"cannot write episodes to {str(path)!r}: {error}") from error


def append_to_run(
    run_dir: Path,
    iteration: int,
    name: str,
    records: Iterable[EpisodeRecord | TokenRecord],
) -> None:
    """Appends episodes to `sessions/NAME.jsonl` of a run, within its limits.

    Raises: CheckpointError.
    """
    path = run_dir / SESSIONS / f"{name}.jsonl"
    append_episodes(path, iteration, records, _MAX_BYTES, _NUM_PARTS_KEPT)


def find_then(run_dir: Path, name: str, names: Iterable[str]) -> Path | None:
    """Returns where a file of a run is that was `name` when `names` were all there were.

    None: it has been deleted, as there were too many; so may all that are older than those there.
    """
    path = run_dir / name
    stem, last = _last_number(path, names)
    parts = [part for part in list_parts(stem) if part != stem]
    if path != stem:
        has_older = any(_number(part) < _number(path) for part in parts)
        return path if path.is_file() or has_older else None
    if not any(_number(part) > last for part in parts):
        return path
    first = _part(stem, last + 1)
    return first if first.is_file() and first.stat().st_size else None


def undo_parts(run_dir: Path, names: Iterable[str]) -> None:
    """Brings a run's files back to the names that they had when `names` were all there were.

    What became a part since has more lines than then; what is newer is deleted. Killed in between,
    it can be done again. Of files that are gone an empty part stays, to tell that they were there.
    """
    folder, names = run_dir / SESSIONS, list(names)
    for path in sorted({path.with_name(whole_name(path)) for path in folder.glob("*.jsonl")}):
        _, last = _last_number(path, names)
        later = [part for part in list_parts(path) if part != path and _number(part) > last]
        for part in reversed(later[1:]):
            part.unlink()
        if not later:
            continue
        if find_then(run_dir, f"{SESSIONS}/{path.name}", names) == later[0]:
            later[0].replace(path)
        else:
            path.unlink(missing_ok=True)
            os.truncate(later[0], 0)


def _is_part_of(part: Path, path: Path) -> bool:
    return part.name != path.name == whole_name(part)


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number:06d}.jsonl")


def _number(part: Path) -> int:
    match = _PART.fullmatch(part.name)
    return int(match[2]) if match else 0


def _last_number(path: Path, names: Iterable[str]) -> tuple[Path, int]:
    """Returns the file that lines are appended to, and the highest number of its parts in names."""
    stem = path.with_name(whole_name(path))
    paths = [Path(name) for name in names]
    numbers = [_number(each) for each in paths if _is_part_of(each, stem)]
    return stem, max(numbers, default=0)
