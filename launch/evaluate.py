"""Evaluates policies on the evaluation tasks: models, adapters, merged ones, endpoints, baselines.

```sh
agentpeft evaluate outputs/quickstart/20260101-120000 --policy base --modes both
agentpeft evaluate arithmetic_add --adapter path/a --adapter old=path/b
agentpeft evaluate db_bench --policy oracle evaluation.num_tasks=50
agentpeft evaluate db_bench --endpoint http://localhost:8000/v1 --endpoint-model my-model
agentpeft evaluate db_bench --policy base --replay 4 --votes 3
```

Tasks are those of `evaluation.num_tasks`, with `evaluation.samples_per_task` episodes each: one is
greedy, several are sampled and give pass@k. Several policies are compared task by task. It writes
results.json and every episode. The same command with --output continues an interrupted evaluation.
Off a terminal, or with --json, the last line is JSON.

Exit status: 0 done; 1 a failure; 2 wrong input; 130 interrupted.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from agentpeft.launch.data.task_files import with_task_files
from agentpeft.launch.run.command_line import CommandLine, SettingsWords, split_settings
from agentpeft.launch.run.ending import AsJson, finish, say_policy
from agentpeft.launch.run.run_folder import as_word, find_run, output_base, read_start, shown
from agentpeft.policies.checkpointing.checkpoints import CONFIG_FILE, make_dated_folder

_adapters = partial(Option, rich_help_panel="Adapters")
_others = partial(Option, rich_help_panel="Other policies")
_methods = partial(Option, rich_help_panel="How all of them play")
Mode = Literal["adapter", "merged", "both"]
main = CommandLine()


class Baseline(StrEnum):
    """A policy that needs no adapter."""

    BASE = "base"
    ORACLE = "oracle"
    RANDOM = "random"


@main.add(help=__doc__)
def evaluate(  # noqa: PLR0913 (options, by keyword only)
    words: SettingsWords = None,
    *,
    output: Annotated[Path | None, Option(metavar="DIR", help="Where to write or go on.")] = None,
    adapter: Annotated[
        list[str] | None, _adapters(metavar="[NAME=]PATH", help="May be repeated.")
    ] = None,
    modes: Annotated[Mode, _adapters(help="How they play.")] = "adapter",
    policy: Annotated[
        list[Baseline] | None,
        _others(help="The first adapter's base (or model.name), a perfect agent, random text."),
    ] = None,
    endpoint: Annotated[
        str | None,
        _others(metavar="URL", help="An OpenAI-compatible one; its key: OPENAI_API_KEY."),
    ] = None,
    endpoint_model: Annotated[
        list[str] | None, _others(metavar="NAME", help="A model there; may be repeated.")
    ] = None,
    endpoint_options: Annotated[
        dict[str, Any] | None,
        _others(parser=json.loads, metavar="JSON", help="More fields of its requests."),
    ] = None,
    endpoint_tools: Annotated[
        bool, _others(help="It acts by calling the environment's tools.")
    ] = False,
    replay: Annotated[int, _methods(help="Past successes in each prompt.")] = 0,
    votes: Annotated[int, _methods(help="Samples of each turn; the most frequent counts.")] = 1,
    as_json: AsJson = False,
) -> int:
    """Plays the tasks with every policy that is named, and prints the summary."""
    from agentpeft.launch.evaluating import contest
    from agentpeft.launch.evaluating.players import Methods

    configs, overrides = split_settings(words)
    if run_dir := find_run(Path(configs[0])):
        adapter = adapter or [configs[0]]
        configs[0] = str(run_dir / CONFIG_FILE)
    settings = with_task_files(read_start(configs, overrides).settings)
    policies: list[Any] = [baseline.value for baseline in policy or []]
    contestants = contest.find_contestants(
        settings, adapter or [], modes, policies, endpoint, endpoint_model or []
    )
    options = {} if endpoint_options is None else endpoint_options
    methods = Methods(replay, votes, options, endpoint_tools)
    base = output_base(Path(settings.output.dir)) / "evaluations" / settings.experiment
    folder = (output or make_dated_folder(base)).absolute()
    try:
        summary = contest.evaluate(settings, contestants, methods, folder)
    except KeyboardInterrupt:
        if folder.is_dir():
            print(
                f"continue with: the same command and --output {as_word(folder)}", file=sys.stderr
            )
        raise
    finally:
        if output is None:
            with suppress(OSError):
                folder.rmdir()  # where nothing was played
    finish({"output": shown(folder), **summary}, *_describe(summary, folder), as_json=as_json)
    return 0


def _describe(summary: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yields how the policies compare, where the results are, and what can be done next."""
    for pair in summary["comparisons"]:
        policy, other = say_policy(pair["policy"]), say_policy(pair["other"])
        points, low, high = (100 * pair[name] for name in ("difference", "low", "high"))
        yield (
            f"{policy} against {other}: {points:+.0f} points, paired 95 % interval "
            f"[{low:+.0f}, {high:+.0f}], better on {pair['num_better']} of {pair['num_tasks']} "
            f"tasks, worse on {pair['num_worse']}"
        )
    yield f"results: {shown(folder / 'results.json')}"
    if not summary["comparisons"]:
        yield "next: the same command with --policy base, or another --adapter, compares the two"


if __name__ == "__main__":
    sys.exit(main())
