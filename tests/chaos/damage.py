"""Random damage to the files of a run, and what going on from it may then do.

A damaged run is refused in one line that names the file, or goes on as if nothing had happened:
files that are never read may be damaged, and lines after the last checkpoint are cut off anyhow.
"""

import random
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from io import StringIO
from pathlib import Path

from small_run import CONFIG, read_results

from agentpeft.launch.train import main
from agentpeft.policies.checkpointing.checkpoints import checkpoint_path

_NUM_TRAINED, _GO_ON = 3, "training.num_iterations=4"


@dataclass(frozen=True)
class Outcome:
    """What one damage was and came to; `violation` is None where what may happen did."""

    seed: int
    damage: str
    file: str
    result: str
    violation: str | None


class DamagedRuns:
    """Damages copies of one run, which has an iteration to go, and resumes them."""

    def __init__(self, folder: Path) -> None:
        """Trains the run in `folder`, and resumes one copy undamaged, to compare with."""
        self._folder = folder
        config = folder / "small.toml"
        config.write_text(CONFIG, encoding="utf-8")
        runs = folder / "runs"
        status, lines = _train(
            [str(config), f"output.dir={runs}", f"training.num_iterations={_NUM_TRAINED}"]
        )
        assert status == 0, lines
        (self._run_dir,) = runs.glob("*/*")
        self._sizes = {p.name: p.stat().st_size for p in self._run_dir.glob("sessions/*.jsonl")}
        whole = self._copy("whole")
        status, lines = _train(["--resume", str(whole), _GO_ON])
        assert status == 0, lines
        self._expected = self._read(whole)

    def try_damage(self, seed: int) -> Outcome:
        """Does to a copy of the run what `seed` says, resumes it, and judges what happened."""
        rng = random.Random(seed)
        run_dir = self._copy(f"damaged-{seed}")
        newest = checkpoint_path(run_dir / "checkpoints", _NUM_TRAINED)
        kind = rng.choice(sorted(DAMAGES))
        paths = sorted(path for path in run_dir.rglob("*") if path.is_file())
        read = [path for path in paths if path.parent == run_dir or newest in path.parents]
        path = rng.choice(rng.choice([paths, read]))
        DAMAGES[kind](path, rng)
        changed = self._changes(run_dir)
        status, lines = _train(["--resume", str(run_dir), _GO_ON])
        errors = [line for line in lines if line.startswith("error: ")]
        name = str(path.relative_to(run_dir))
        if status == 0:
            result, is_same = "went on", self._read(run_dir) == self._expected
            violation = None if is_same else "resumed with other results"
        elif status in (1, 2) and len(errors) == 1 and lines[-1:] == errors:
            result = errors[0].replace(str(run_dir), "RUN")
            is_named = any(name in result for name in changed)
            violation = None if is_named else "the message does not name the file"
        else:
            result, violation = f"exit {status}: {lines[-3:]}", "not refused in one line"
        shutil.rmtree(run_dir)
        return Outcome(seed, kind, name, result, violation)

    def _copy(self, name: str) -> Path:
        return Path(shutil.copytree(self._run_dir, self._folder / name, symlinks=True))

    def _changes(self, run_dir: Path) -> set[str]:
        """Returns the files that are not as the run left them, as messages write their names."""
        runs = (self._run_dir, run_dir)
        files = {p.relative_to(r) for r in runs for p in r.rglob("*") if p.is_file()}
        changed = [n for n in files if _content(runs[0] / n) != _content(runs[1] / n)]
        return {re.sub(r"^checkpoints/checkpoint-\d+/", "", str(name)) for name in changed}

    def _read(self, run_dir: Path) -> dict[str, object]:
        """Returns all that a run results in; of its episodes only those since the damage."""
        found = read_results(run_dir, (_NUM_TRAINED + 1,))
        for name, size in self._sizes.items():
            content = (run_dir / "sessions" / name).read_bytes()
            found[name] = sha256(content[size:]).hexdigest()
        return found


def _train(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Runs the command in this process; returns the exit status and the lines of its log."""
    errors = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(errors):
        status = main(arguments)
    return status, errors.getvalue().splitlines()


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _flip_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def _cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def _edit_value(path: Path, rng: random.Random) -> None:
    """Changes a number or a word, as somebody with an editor would; bits of what is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return _flip_bit(path, rng)
    values = list(re.finditer(r"(?<=[ :=\[\"])(\d[\d.e-]*|true|false|[a-z_]+)(?=[\s,\"\]}])", text))
    if not values:
        return None
    value = rng.choice(values)
    other = {"true": "false", "false": "true"}.get(value[0], rng.choice(["0", "1", "7", "word"]))
    path.write_text(text[: value.start()] + other + text[value.end() :], encoding="utf-8")
    return None


def _append(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    last_line = content.splitlines(keepends=True)[-1:] or [b""]
    with path.open("ab") as file:
        file.write(rng.choice([rng.randbytes(9), b"\n", b"\0" * 512, *last_line]))


def _zero_block(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content) + 1)
    size = len(content[start : start + 512])
    content[start : start + size] = bytes(size)
    path.write_bytes(content)


def _remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def _remove_folder(path: Path, rng: random.Random) -> None:
    """Removes the file's folder; of one of the run itself, or beside checkpoints, it alone."""
    if (path.parent / "config.toml").exists() or path.parent.name == "checkpoints":
        path.unlink()
    else:
        shutil.rmtree(path.parent)


def _swap(path: Path, rng: random.Random) -> None:
    """Exchanges the contents of a file and another: mostly of its like in another checkpoint."""
    run_dir = next(parent for parent in path.parents if (parent / "config.toml").exists())
    _exchange(path, rng.choice(_alike(path, run_dir) or sorted(path.parent.glob("*.*"))))


def _swap_checkpoints(path: Path, rng: random.Random) -> None:
    """Exchanges the names of two checkpoints; with a file of none it exchanges two files."""
    own = [parent for parent in path.parents if parent.name.startswith("checkpoint-")]
    others = [p for p in own[0].parent.glob("checkpoint-*") if p != own[0]] if own else []
    if others:
        _exchange(own[0], rng.choice(sorted(others)))
    else:
        _swap(path, rng)


def _alike(path: Path, run_dir: Path) -> list[Path]:
    return sorted(other for other in run_dir.rglob(path.name) if other != path)


def _exchange(first: Path, second: Path) -> None:
    aside = first.with_name(f"{first.name}.aside")
    first.rename(aside)
    if second.exists():
        second.rename(first)
    aside.rename(second if second != first else first)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "appended bytes": _append,
    "bit flip": _flip_bit,
    "cut": _cut,
    "edited value": _edit_value,
    "missing file": _remove,
    "missing folder": _remove_folder,
    "swapped checkpoints": _swap_checkpoints,
    "swapped files": _swap,
    "zeroed block": _zero_block,
}
