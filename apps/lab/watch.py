"""Shows a run in the terminal, from its files alone: live, its end, or a replay.

```sh
agentpeft watch RUN
agentpeft watch RUN --replay 60
agentpeft watch RUN --svg run.svg
```

While the run trains, the view follows its files, until it ends or Ctrl-C. One that has ended is
replayed in some three seconds; --replay SPEED replays it that many times as fast as it was.
Off a terminal, the present view is printed once, as text. --svg writes it as a picture.

Exit status: 0 done; 2 wrong input; 130 interrupted.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO
from itertools import repeat
from pathlib import Path
from typing import Annotated

from rich.console import Console, RenderableType
from rich.live import Live
from typer import Argument, Option

from agentpeft.apps.lab.run_view import MAX_SKILL_LINES, RunSnapshot, clean, render
from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.reporting.run_data import (
    METRICS_FILE,
    Row,
    parse_row,
    read_run,
    read_sessions,
)
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.run_folder import is_held

_EVERY_S = 1.0
_MAX_PAUSE_S = 5.0
_REPLAY_S = 3.0
_NUM_EPISODES = 4
_TAIL_BYTES = 1 << 18
_SVG_CHARS = 100
_FONT_FACE = re.compile(r"@font-face \{.*?\}", re.S)
"""What an SVG of rich's would fetch from another site."""
_EPISODES = "sessions/train.jsonl"
_LOG = "logs/train.log"
_FILES = (METRICS_FILE, _EPISODES, _LOG)
main = CommandLine()


@main.add(help=__doc__)
def watch(
    run: Annotated[Path, Argument(help="A run's folder.")],
    *,
    replay: Annotated[
        float | None, Option(metavar="SPEED", help="Replay the run, SPEED times as fast.")
    ] = None,
    svg: Annotated[
        Path | None, Option(metavar="FILE", help="Write the present view as a picture.")
    ] = None,
) -> int:
    """Shows the run. Raises: DataError, SettingsError, OSError."""
    if replay is not None and not replay > 0:
        raise SettingsError(f"--replay must be > 0, got {replay:g}")
    if replay is not None and svg is not None:
        raise SettingsError("--svg is of the present view: leave out --replay")
    console = Console()
    now = take_snapshot(run)
    if svg is not None:
        write_file(svg, draw(now).encode())
        print(svg)
        return 0
    if not console.is_terminal:
        console.print(render(now))
        return 0
    if replay is not None:
        views = play_again(now, read_sessions(run, "train"), replay)
    elif now.state == "running":
        views = _follow(now, run)
    else:  # in seconds: the last episodes will do
        speed = max(sum(now.series("time/total_s")) / _REPLAY_S, 1.0)
        views = play_again(now, now.episodes, speed)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for view in views:
            live.update(_fit(view, console), refresh=True)
    return 0


def draw(view: RunSnapshot) -> str:
    """Returns the view as an SVG picture, in the fonts of whoever looks at it."""
    console = Console(record=True, width=_SVG_CHARS, file=StringIO(), force_terminal=True)
    console.print(render(view))
    title = f"agentpeft watch {clean(view.name)}"
    return _FONT_FACE.sub("", console.export_svg(title=title))


def _fit(view: RunSnapshot, console: Console) -> RenderableType:
    """Returns the view; as long as it changes, all of it is on the screen but some skills."""
    if view.state not in ("running", "replay"):
        return render(view)
    others = len(console.render_lines(render(view, 1), pad=False)) - 1
    return render(view, min(MAX_SKILL_LINES, max(1, console.height - others)))


def take_snapshot(run: Path) -> RunSnapshot:
    """Returns a run as it is. Raises: SettingsError where there is none, DataError."""
    state = "running" if is_held(run) else ""
    data = read_run(run, may_be_new=True)
    num_iterations = data.number("training.num_iterations", 0)
    group_size = data.number("training.group_size", 1)
    episodes = _read_episodes(run / _EPISODES, group_size)
    logged = _read_end(run / _LOG, 1)
    note = "" if data.metrics else b"".join(logged).decode("utf-8", "replace")
    is_at_frontier = data.settings.get("curriculum.sampling") == '"frontier"'
    now = RunSnapshot(
        data.name,
        state,
        num_iterations,
        data.metrics,
        episodes,
        note,
        data.evaluated_tasks,
        is_at_frontier,
    )
    return replace(now, state=state or ("ended" if now.step >= num_iterations else "stopped"))


def _follow(now: RunSnapshot, run: Path) -> Iterator[RunSnapshot]:
    """Yields the run whenever its files have changed, until it has ended."""
    yield now
    seen: object = None
    while now.state == "running":
        time.sleep(_EVERY_S)
        before, seen = seen, (is_held(run), *map(_measure, _FILES, repeat(run)))
        if seen != before:
            now = take_snapshot(run)
            yield now


def _measure(name: str, run: Path) -> tuple[int, int] | None:
    """Returns a file's size and when it was changed; None where there is none."""
    try:
        found = (run / name).stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def play_again(end: RunSnapshot, rows: Iterable[Row], speed: float) -> Iterator[RunSnapshot]:
    """Yields the run after its lines, each when the run's own clock, sped up, comes to it.

    `rows` are its episodes, as far as they are shown.
    What the clock has passed already, since drawing takes long, is left out. A line waits for
    `_MAX_PAUSE_S` at most. Raises: DataError.
    """
    episodes = iter(rows)
    recent: list[Row] = []
    ahead = next(episodes, None)
    pauses_s = [min((r.get("time/total_s") or 0.0) / speed, _MAX_PAUSE_S) for r in end.lines]
    due_s = time.monotonic()
    for number, line in enumerate(end.lines, 1):
        while ahead is not None and ahead["iteration"] < line["train/step"]:
            recent = _with_last(recent, ahead)
            ahead = next(episodes, None)
        due_s += pauses_s[number - 1]
        if number < len(pauses_s) and due_s + pauses_s[number] < time.monotonic():
            continue
        time.sleep(max(due_s - time.monotonic(), 0.0))
        yield replace(end, state="replay", lines=end.lines[:number], episodes=tuple(recent))
    yield end


def _read_episodes(path: Path, group_size: int) -> list[Row]:
    """Returns the last episodes, each of another group. Raises: DataError."""
    episodes: list[Row] = []
    for line in _read_end(path, _NUM_EPISODES * group_size):
        episodes = _with_last(episodes, parse_row(line, path, "one of its last lines"))
    return episodes


def _with_last(episodes: list[Row], row: Row) -> list[Row]:
    """Returns the last episodes with one more, which takes the place of its group's last one."""
    others = [each for each in episodes if each["group_id"] != row["group_id"]]
    return [*others, row][-_NUM_EPISODES:]


def _read_end(path: Path, num_lines: int) -> list[bytes]:
    """Returns the last whole lines of a file that may be gigabytes long."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        length = _TAIL_BYTES
        while True:
            start = max(size - length, 0)
            file.seek(start)
            lines = file.read(size - start).split(b"\n")[:-1]  # what follows is being written
            whole = lines[1:] if start else lines
            if start == 0 or len(whole) >= num_lines:
                return whole[-num_lines:]
            length *= 2
