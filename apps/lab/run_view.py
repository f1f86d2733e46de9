"""A run as a terminal shows it, from the lines that its files hold: `render`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agentpeft.apps.lab.sparklines import sparkline
from agentpeft.launch.reporting.alarms import find_alarms
from agentpeft.launch.reporting.run_data import Row
from agentpeft.launch.run.summary import LEFT, compute_cost

_CURVES = {
    "success": "eval/success_rate",
    "training success": "train/accuracy",
    "reward": "train/avg_reward",
    "loss": "train/policy_loss",
    "entropy": "train/entropy",
    "seconds": "time/total_s",
}
_PARTS = {
    "sample": "plays episodes",
    "learn": "trains the policy",
    "broadcast": "syncs and verifies the adapter",
    "orchestration": "all else",
}
_NOTHING = "(nothing)"
"""Stands for an empty text."""
_WINDOW = 10
_LABEL = re.compile(r"^(?:Task|Problem|Question): *(\S.*)", re.M)
_ASKING = re.compile(r"[.?!=]\s*$")
MAX_SKILL_LINES = 13
_BAR_CHARS = 20
_WIDTH = 40


@dataclass(frozen=True)
class RunSnapshot:
    """What is known of a run at a moment: its lines and its latest episodes, both oldest first.

    `state` is a word: running, ended, stopped, replay. `note` is what the log says of a run that
    has measured nothing yet. `tasks` says what is evaluated. `is_at_frontier`: training chooses
    tasks that are neither learnt nor hopeless.
    """

    name: str
    state: str
    num_iterations: int
    lines: Sequence[Row]
    episodes: Sequence[Row]
    note: str = ""
    tasks: str = ""
    is_at_frontier: bool = False

    @property
    def step(self) -> int:
        """The last iteration."""
        return int(self.lines[-1]["train/step"]) if self.lines else 0

    def series(self, metric: str) -> list[float]:
        """Returns a metric's values, where it is a number."""
        return [float(row[metric]) for row in self.lines if row.get(metric) is not None]


def render(run: RunSnapshot, max_skill_lines: int = MAX_SKILL_LINES) -> RenderableType:
    """Returns the whole view. Nothing that an agent has said reaches the terminal as a command."""
    sections: dict[str, Iterator[RenderableType]] = {
        "curves, first -> last": _curves(run),
        "success by skill": _skills(run, max_skill_lines),
        "seconds of an iteration": _seconds(run),
        "alarms": _alarms(run),
        "last episodes": _episodes(run),
    }
    shown: list[RenderableType] = [*_head(run)]
    for title, section in sections.items():
        if lines := [*section]:
            shown += [Rule(title), *lines]
    return Group(*shown)


def _head(run: RunSnapshot) -> Iterator[RenderableType]:
    yield Text.assemble((clean(run.name), "bold"), f"  {run.state}")
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(max(run.num_iterations, 1), run.step, width=_WIDTH)
    spent_s = sum(run.series("time/total_s"))
    left = run.series(LEFT)[-1:] if run.state == "running" else []
    times = f"{_clock(spent_s)} spent" + "".join(f", {_clock(s)} left" for s in left)
    line.add_row(bar, Text(f"iteration {run.step} of {run.num_iterations}, {times}"))
    yield line
    if run.note:
        yield Text(clean(run.note), "dim")
    yield find_lamp(run.lines)
    cost = compute_cost(run.lines)
    if cost["seconds"] is not None and cost["tokens"] is not None:
        yield Text(f"{cost['seconds']:.3g} s and {cost['tokens']:.0f} tokens per success")


def find_lamp(lines: Sequence[Row]) -> Text:
    """Returns whether every runner serves the last adapter.

    Green: every runner has proven it on fixed tokens. Yellow: it was acknowledged by its hash, and
    no proof was asked for. Red: a runner failed to prove it and was restarted.
    """
    trained = [row for row in lines if "time/broadcast_s" in row]
    if not trained:
        return Text("○ no adapter was synced yet", "dim")
    failed = [row.get("fault/num_failed_deliveries") or 0 for row in [{}, *trained][-2:]]
    version = int(trained[-1]["train/step"])
    if failed[-1] > failed[0]:
        return Text(f"● adapter {version}: a sync failed and was repeated", "red")
    if any(name.startswith("delivery/") for name in trained[-1]):
        return Text(f"● adapter {version} synced and verified", "green")
    return Text(f"● adapter {version} synced, not verified", "yellow")


def _curves(run: RunSnapshot) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 1))
    for label, metric in _CURVES.items():
        if values := run.series(metric):
            is_rate = "success" in label
            line = sparkline(values, _WIDTH, (0.0, 1.0) if is_rate else None)
            ends = (f"{v:.1%}" if is_rate else f"{v:.3g}" for v in (values[0], values[-1]))
            table.add_row(label, Text(line, "cyan"), " -> ".join(ends))
    if table.row_count:
        yield table
    evaluated, trained = run.series("eval/success_rate"), run.series("train/accuracy")
    if evaluated:
        lower = bool(trained) and trained[-1] < evaluated[-1] and run.is_at_frontier
        why = "; training success is lower, as it chooses tasks that are half learnt" * lower
        yield Text(f"success is measured on {run.tasks}{why}", "dim")


def _skills(run: RunSnapshot, max_lines: int) -> Iterator[RenderableType]:
    """Yields a bar for each skill, of the last evaluation that has it, else of training."""
    rates: dict[str, float] = {}
    for prefix in ("train/skill/", "eval/skill/"):
        for row in run.lines:
            rates |= {
                name.removeprefix(prefix): rate
                for name, rate in row.items()
                if name.startswith(prefix) and rate is not None
            }
    table = Table.grid(padding=(0, 1))
    num_shown = len(rates) if len(rates) <= max_lines else max_lines - 1
    for name in sorted(rates)[:num_shown]:
        full = round(rates[name] * _BAR_CHARS)
        bar = Text("█" * full, "green") + Text("░" * (_BAR_CHARS - full), "dim")
        table.add_row(Text(clean(name)), bar, f"{rates[name]:.0%}")
    if len(rates) > num_shown:
        table.add_row(f"and {len(rates) - num_shown} more")
    if rates:
        yield table


def _seconds(run: RunSnapshot) -> Iterator[RenderableType]:
    recent = [row for row in run.lines if row.get("time/total_s")][-_WINDOW:]
    if not recent:
        return
    means = {part: fmean(row.get(f"time/{part}_s") or 0.0 for row in recent) for part in _PARTS}
    total = sum(means.values()) or 1.0
    table = Table.grid(padding=(0, 1))
    for part, seconds in means.items():
        full = round(seconds / total * _BAR_CHARS)
        bar = Text("█" * full, "blue")
        table.add_row(part, bar, f"{seconds:.3g} s", Text(_PARTS[part], "dim"))
    yield table


def _alarms(run: RunSnapshot) -> Iterator[RenderableType]:
    for alarm in find_alarms(run.lines):
        yield Text(f"{alarm.name}: {alarm.seen}", "red")
        yield Text(f"  {alarm.advice}", "dim")


def _episodes(run: RunSnapshot) -> Iterator[RenderableType]:
    names = [f"train-{row['group_id']}-{row['sample']}" for row in run.episodes]
    width = max(map(len, names), default=0)
    for name, row in zip(names, run.episodes, strict=True):
        style = "green" if row["outcome"] == "success" else "yellow"
        yield Text.assemble(
            (f"{name:<{width}}  ", "bold"),
            (clean(row["outcome"]), style),
            clean(f", return {row['episode_return']:.3g}  {find_question(row['messages'])}"),
            clean(f"  {_told(row)}"),
            overflow="ellipsis",
            no_wrap=True,
        )


def _told(row: Row) -> str:
    """Returns what the agent said last, and what the environment answered, in one line."""
    first = next((i for i, (role, _) in enumerate(row["messages"]) if role == "assistant"), 0)
    ends = row["messages"][first:][-2:]
    said = (f"{'»' if role == 'assistant' else '«'} {say_text(text)}" for role, text in ends)
    return " ".join(" ".join(said).split())


def find_question(messages: Sequence[Sequence[str]]) -> str:
    r"""Returns the line of an episode's prompt that asks, as far as lines tell by their looks.

    >>> find_question([("user", "pets(name TEXT)\nHow many pets are there?\n4 turns")])
    'How many pets are there?'
    """
    prompt = next((text for role, text in messages if role == "user"), "")
    lines = [line.strip() for line in prompt.splitlines() if line.strip()]
    if label := _LABEL.search(prompt):
        return clean(label[1])
    return clean(next(filter(_ASKING.search, lines), lines[0] if lines else ""))


def say_text(text: str) -> str:
    """Returns what was said, or that it was nothing."""
    return text if text.strip() else _NOTHING


def clean(text: str) -> str:
    """Returns a text without what a terminal would take for more than text."""
    return "".join(character if character.isprintable() else "·" for character in text)


def _clock(seconds: float) -> str:
    """Returns seconds as "1:02:03" or "2:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
