"""Writes a run's episodes as a data set in TRL's formats, one JSON line each.

```sh
agentpeft export outputs/quickstart/20260101-120000 --format preference
agentpeft export outputs/quickstart/20260101-120000 --format sft --from-iteration 50
```

preference: what two episodes of a group have in common (`prompt`), then the first action in which
they differ, of the one with the higher return (`chosen`) and of the other (`rejected`). sft: an
action of an episode that succeeded (`completion`) after what came before (`prompt`). unpaired: an
action of any episode with a `label`, whether it succeeded, for KTO; an action that both successes
and failures took after the same prompt is left out. No row twice.
Off a terminal, or with --json, the last line is JSON: the file and its number of rows.

Exit status: 0 done; 1 nothing could be written; 2 wrong input, or no rows.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from agentpeft.envs import Outcome, SettingsError
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.reporting.run_data import Row, RunData, read_run, read_sessions
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import shown

_TRAINERS = {"preference": "trl.DPOTrainer", "sft": "trl.SFTTrainer", "unpaired": "trl.KTOTrainer"}
main = CommandLine()


@main.add(help=__doc__)
def export(
    run: Annotated[Path, Argument(help="A run's folder.")],
    *,
    rows: Annotated[Literal["preference", "sft", "unpaired"], Option("--format")] = "preference",
    output: Annotated[Path | None, Option(show_default="RUN/exports/FORMAT.jsonl")] = None,
    force: Annotated[bool, Option("--force", help="Overwrite the file if it exists.")] = False,
    from_iteration: Annotated[int, Option(help="Leave out what was earlier.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Writes the file. Raises: DataError, SettingsError, OSError."""
    data = read_run(run)
    path = output or data.path / "exports" / f"{rows}.jsonl"
    if path.is_file() and not force:
        raise SettingsError(f"{path} exists: --force overwrites it, --output writes another file")
    sessions = read_sessions(data.path, "train")
    episodes = (row for row in sessions if row["iteration"] >= from_iteration)
    to_rows = {"preference": to_preferences, "sft": to_sft_rows, "unpaired": to_unpaired_rows}[rows]
    columns = _template_columns(data)
    lines = list(dict.fromkeys(json.dumps({**row, **columns}) for row in to_rows(episodes)))
    if not lines:
        source = data.path / "sessions" / "train.jsonl"
        raise SettingsError(f"{source} from iteration {from_iteration} on: no {rows} row")
    if output is None:
        path.parent.mkdir(exist_ok=True)
    write_file(path, "".join(f"{line}\n" for line in lines).encode())
    finish(
        {"output": str(path), "rows": len(lines)},
        f"{len(lines)} {rows} rows written to {shown(path)}",
        f"use: datasets.load_dataset('json', data_files={shown(path)!r}), then {_TRAINERS[rows]}",
        as_json=as_json,
    )
    return 0


def to_preferences(episodes: Iterable[Row]) -> Iterator[Row]:
    """Yields pairs of each group: worst against best, second worst against second best, and so on.

    Where the environment answered the same action in two ways there is none.
    """
    for _, group in groupby(episodes, lambda row: (row["iteration"], row["group_id"])):
        ranked = sorted(group, key=lambda row: float(row["episode_return"]))
        for worse, better in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
            if worse["episode_return"] < better["episode_return"]:
                yield from _compare(worse["messages"], better["messages"])


def to_sft_rows(episodes: Iterable[Row]) -> Iterator[Row]:
    """Yields a row for each action of the episodes that succeeded."""
    for episode in episodes:
        if episode["outcome"] == Outcome.SUCCESS:
            yield from _split_actions(episode)


def to_unpaired_rows(episodes: Iterable[Row]) -> Iterator[Row]:
    """Yields each action once, with whether its episode succeeded; none that did both."""
    labels: dict[str, set[bool]] = {}
    for episode in episodes:
        is_success = episode["outcome"] == Outcome.SUCCESS
        for row in _split_actions(episode):
            labels.setdefault(json.dumps(row), set()).add(is_success)
    for text, seen in labels.items():
        if len(seen) == 1:
            yield {**json.loads(text), "label": seen.pop()}


def _split_actions(episode: Row) -> Iterator[Row]:
    """Yields each action of an episode after all that came before it."""
    messages = _to_messages(episode["messages"])
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            yield {"prompt": messages[:index], "completion": [message]}


def _template_columns(run: RunData) -> Row:
    """Returns the column in which TRL reads the variables of the chat template; none without."""
    variables = json.loads(run.settings.get("model.chat_template_kwargs", "{}"))
    return {"chat_template_kwargs": variables} if variables else {}


def _compare(worse: Sequence[Sequence[str]], better: Sequence[Sequence[str]]) -> Iterator[Row]:
    for index, (rejected, chosen) in enumerate(zip(worse, better, strict=False)):
        if rejected != chosen:
            if rejected[0] == chosen[0] == "assistant":
                yield {
                    "prompt": _to_messages(better[:index]),
                    "chosen": _to_messages([chosen]),
                    "rejected": _to_messages([rejected]),
                }
            return


def _to_messages(pairs: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


if __name__ == "__main__":
    sys.exit(main())
