"""One episode of a run, by its name: what the run's files hold of it."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, cast

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agentpeft.apps.lab.run_view import clean, find_question
from agentpeft.envs import Outcome, SettingsError, Task
from agentpeft.launch.reporting.run_data import Row, read_sessions, to_record
from agentpeft.policies.checkpointing.checkpoints import checkpoint_path
from agentpeft.policies.checkpointing.reading import (
    read_checkpoint,
    read_config,
    read_state,
    settings_of,
)
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.rollout.environments import EnvPool, open_held_out, open_stages
from agentpeft.policies.rollout.groups import Mode
from agentpeft.policies.settings.config import Settings

_NAME = re.compile(r"(train|eval)-(\d{1,18})(?:-(\d{1,9}))?(?:@(\d{1,9}))?(?::(\d{1,9}))?")
_FORM = "train-GROUP-SAMPLE or eval-GROUP-SAMPLE@ITERATION, then maybe :TURN"


@dataclass(frozen=True)
class EpisodeName:
    """Which episode of a run, as its log names it too: `train-000000012-0003`.

    An evaluation plays the same tasks again, so its episodes have the `iteration` after which it
    was (None: the last one). `turn`, from 1 on, is where another course begins; None is nowhere.
    """

    mode: Mode
    group_id: int
    sample: int
    iteration: int | None = None
    turn: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a name; zeros and a sample of 0 may be left out. Raises: SettingsError."""
        match = _NAME.fullmatch(text)
        if match is None or (match[1] == "train" and match[4]):
            raise SettingsError(f"an episode is named {_FORM}; got {text!r}")
        numbers = [None if each is None else int(each) for each in match.groups()[1:]]
        return cls(cast(Mode, match[1]), numbers[0] or 0, numbers[1] or 0, *numbers[2:])

    def is_of(self, row: Row) -> bool:
        """Returns whether it names the episode of a line of its mode's sessions file."""
        is_place = (row["group_id"], row["sample"]) == (self.group_id, self.sample)
        return is_place and self.iteration in (None, row["iteration"])

    def __str__(self) -> str:
        """The name without a turn."""
        after = "" if self.iteration is None else f"@{self.iteration}"
        return f"{self.mode}-{self.group_id}-{self.sample}{after}"


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode as its run has recorded it, with the settings that it was played with.

    `tokens` is its line of `tokens.jsonl`, which has four episodes of an iteration; else None.
    `checkpoint` is the one of the adapter that played; None where it is not kept, and for version
    0, which is what training began with.
    """

    run: Path
    name: EpisodeName
    record: EpisodeRecord
    tokens: Row | None
    settings: Settings
    checkpoint: Path | None

    @property
    def has_adapter(self) -> bool:
        """Whether the adapter that played it can be had."""
        return self.checkpoint is not None or self.record.adapter_version == 0

    @property
    def said(self) -> tuple[str, ...]:
        """What the agent said, turn by turn, thoughts included."""
        return tuple(text for role, text in self.record.messages if role == "assistant")

    @property
    def prompt(self) -> str:
        """What the environment said first."""
        return next(text for role, text in self.record.messages if role == "user")

    @property
    def observations(self) -> tuple[str, ...]:
        """What each action led to; the last one of an agent that ran out of room led to nothing."""
        return tuple(text for role, text in self.record.messages if role == "user")[1:]

    @contextmanager
    def open_tasks(self) -> Iterator[tuple[int, EnvPool, Task]]:
        """Yields its stage of training (0 in evaluation), environments, and task.

        Raises: SettingsError where its position has another task now.
        """
        is_eval, position = self.name.mode == "eval", self.record.group_id
        pools = [open_held_out(self.settings)] if is_eval else open_stages(self.settings)
        try:
            tasks = [pool.task_at(position) for pool in pools]
            ids = [task.task_id for task in tasks]
            if self.record.task_id not in ids:
                raise SettingsError(
                    f"{self.name} was task {self.record.task_id!r}, and its position has "
                    f"{ids[0]!r} now: the environment, or its task file, has changed"
                )
            stage = ids.index(self.record.task_id)
            yield stage, pools[stage], tasks[stage]
        finally:
            for pool in pools:
                pool.close()


def list_episodes(run: Path, num_episodes: int, failed: bool, skill: str | None) -> RenderableType:
    """Returns a table of the last episodes of training and of evaluation, each oldest first.

    `failed`: of those that did not succeed; `skill`: of those whose task has it. Raises: DataError.
    """
    table = Table("episode", "adapter", "outcome", "return", "turns", "task", box=None)
    modes: tuple[Mode, ...] = ("train", "eval")
    for mode in modes:
        wanted = (
            row
            for row in read_sessions(run, mode)
            if not (failed and row["outcome"] == Outcome.SUCCESS)
            and skill in (None, *row.get("skills", ()))
        )
        for row in deque(wanted, num_episodes):
            numbers = f"{row['episode_return']:.3g}", str(row.get("num_turns", ""))
            words = str(_name_of(mode, row)), str(row.get("adapter_version", "")), row["outcome"]
            question = Text(find_question(row["messages"]), overflow="ellipsis", no_wrap=True)
            table.add_row(*map(clean, words), *numbers, question)
    if table.row_count:
        return table
    kind = " such" if failed or skill is not None else ""
    return Text(f"no{kind} episodes were recorded (output.loggers keeps them with episodes)")


def read_episode(run: Path, name: EpisodeName) -> RecordedEpisode:
    """Returns an episode of a run. Raises: SettingsError, DataError, CheckpointError."""
    row = _last(read_sessions(run, name.mode), name)
    if row is None:
        path = run / "sessions" / f"{name.mode}.jsonl"
        lacks = "" if path.is_file() else f" (no {path}: output.loggers keeps them with episodes)"
        raise SettingsError(
            f"no episode {name} in {run}{lacks}; agentpeft replay {run} lists the last ones"
        )
    name = replace(_name_of(name.mode, row), turn=name.turn)
    record = to_record(row)
    settings, checkpoint = read_config(run), None
    if record.adapter_version:
        kept = checkpoint_path(run / "checkpoints", record.adapter_version)
        checkpoint = kept if kept.is_dir() else None
    if checkpoint is not None:  # with its settings: a resumed run may have changed some since
        settings = Settings(**settings_of(read_state(read_checkpoint(checkpoint))))
    own = replace(name, iteration=row["iteration"])
    tokens = _last(read_sessions(run, "tokens"), own) if name.mode == "train" else None
    return RecordedEpisode(run, name, record, tokens, settings, checkpoint)


def _name_of(mode: Mode, row: Row) -> EpisodeName:
    iteration = row["iteration"] if mode == "eval" else None
    return EpisodeName(mode, row["group_id"], row["sample"], iteration)


def _last(rows: Iterable[Row], name: EpisodeName) -> Row | None:
    """Returns the last line of an episode."""
    found = None
    for row in rows:
        if name.is_of(row):
            found = row
    return found
