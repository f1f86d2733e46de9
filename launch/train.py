"""Trains a policy: LoRA weights by reinforcement learning in a Gymnasium text environment.

```sh
agentpeft train quickstart
agentpeft train arithmetic_add training.lr=1e-3 env_runners.num_env_runners=2
agentpeft train --resume outputs/quickstart/20260101-120000
```

Standard output is JSON lines; the last has success rates before and after, and the adapter's path.
What others print goes to standard error. If the reader closes the pipe, the run continues.

Exit status: 0 done; 1 the run failed; 2 wrong settings; 143, 130 or 129 stopped by SIGTERM, Ctrl-C
or a hang-up of the terminal, after saving what was learnt, if anything was.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, TextIO

from typer import Option

from agentpeft.envs import SettingsError
from agentpeft.launch.reporting.run_data import read_run
from agentpeft.launch.run.command_line import (
    CommandLine,
    DryRun,
    FastDevRun,
    SettingsWords,
    split_settings,
)
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import (
    Start,
    as_word,
    change_settings,
    find_adapter,
    find_run,
    is_held,
    list_configs,
    lock_run,
    log_to,
    make_run_dir,
    read_resumed,
    read_start,
)
from agentpeft.launch.run.standard_streams import reserved_stdout, show_progress
from agentpeft.launch.run.stop_signals import Stopped, StopSignals
from agentpeft.policies.checkpointing.checkpoints import CONFIG_FILE
from agentpeft.policies.delivery.adapter_files import is_whole_model
from agentpeft.policies.errors import TrainingError

_start = partial(Option, rich_help_panel="Where to start")
_cluster = partial(Option, rich_help_panel="Where to run")
main = CommandLine()


@main.add(help=__doc__)
def train(  # noqa: PLR0913 (options, by keyword only)
    words: SettingsWords = None,
    *,
    dry_run: DryRun = False,
    fast_dev_run: FastDevRun = False,
    resume: Annotated[Path | None, _start(metavar="DIR", help="Go on with a run.")] = None,
    resume_from: Annotated[
        Path | None,
        _start(metavar="ADAPTER", help="Start from an adapter's, or a run's, weights alone."),
    ] = None,
    address: Annotated[str | None, _cluster(help="Ray cluster to join; else RAY_ADDRESS.")] = None,
    as_json: AsJson = False,
) -> int:
    """Trains as the settings say, or goes on with a run, and prints the summary."""
    # Before huggingface_hub is imported, or transformers shows a progress bar at each checkpoint
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not (words or dry_run or fast_dev_run or resume or resume_from):
        print(
            "agentpeft train CONFIG [SECTION.NAME=VALUE ...]; a config is a TOML file, or one of:"
        )
        configs = list_configs()
        width = max(map(len, configs))
        print(*(f"  {name:{width}}  {about}" for name, about in configs.items()), sep="\n")
        return 2
    start = _read_start(words, resume, resume_from)
    if fast_dev_run:
        from agentpeft.launch.run.fast_dev_run import begin_short

        start = begin_short(start)
    if dry_run:
        _look_ahead(start, address)
        return 0
    from agentpeft.launch.run.ray_session import RayError, say_cause
    from agentpeft.launch.run.summary import describe_end

    try:
        with reserved_stdout() as output:
            summary = _train(start, address, output, is_short=fast_dev_run)
            if fast_dev_run:
                _finish_short(summary)
            is_for_person = output.isatty() and not as_json
            lines = describe_end(read_run(_run_of(summary)), summary) if is_for_person else ()
            finish(summary, *lines, as_json=as_json, output=output)
    except Stopped as stop:
        return stop.exit_status
    except RayError as error:
        raise TrainingError(say_cause(error)) from error
    return 0


def _look_ahead(start: Start, address: str | None) -> None:
    """Prints the settings and the memory. Raises: what would end a run in its first minute."""
    from agentpeft.launch.checking.preparation import look_ahead
    from agentpeft.launch.costs.resources import compare_memory, describe_memory

    print(start.settings.to_toml())
    try:
        look_ahead(start.settings, address, is_new=start.run_dir is None)
        if start.run_dir is not None and is_held(start.run_dir):
            raise SettingsError(f"{start.run_dir} is being trained already")
        is_here = not (address or os.environ.get("RAY_ADDRESS"))
        lacking = compare_memory(start.settings) if is_here else None
    finally:
        print(*(f"# {line}" for line in describe_memory(start.settings)), sep="\n")
    if lacking:
        print(f"# memory: {': '.join(lacking)}")
    elif sys.stderr.isatty():
        print("nothing would stop this run: start it without --dry-run", file=sys.stderr)


def _read_start(words: list[str] | None, resume: Path | None, resume_from: Path | None) -> Start:
    configs, settings = split_settings(words)
    names_config = len(settings) < len(words or [])
    if resume is not None:
        if names_config or resume_from is not None:
            raise SettingsError("--resume goes on with the run's own config: give no other")
        return read_resumed(resume, settings)
    if resume_from is not None:
        if not resume_from.is_dir():
            raise SettingsError(f"--resume-from {resume_from} is no folder")
        if not names_config:
            run = find_run(resume_from)
            if run is None:
                raise SettingsError(f"--resume-from {resume_from} is in no run: name a config too")
            configs = [str(run / CONFIG_FILE)]
        if any((resume_from / name).is_dir() for name in ("checkpoints", "adapter")):
            resume_from = find_adapter(resume_from)  # a run's, or a checkpoint's
        if is_whole_model(resume_from):
            raise SettingsError(
                f"--resume-from {resume_from} is a whole model: set model.name to it instead"
            )
        settings.append(f"model.adapter={json.dumps(str(resume_from.absolute()))}")
    return read_start(configs, settings)


def _finish_short(summary: dict[str, object]) -> None:
    """Says what the gradients of a `--fast-dev-run` were, and writes its report."""
    from agentpeft.launch.report import write_report
    from agentpeft.launch.run.fast_dev_run import describe_gradients

    run_dir = _run_of(summary)
    print(*describe_gradients(run_dir), sep="\n", file=sys.stderr)
    summary["report"] = str(write_report([run_dir])["report"])


def _run_of(summary: dict[str, object]) -> Path:
    """Returns the run's folder: the adapter lies in a checkpoint of it."""
    return Path(str(summary["adapter"])).absolute().parents[2]


def _train(
    start: Start, address: str | None, output: TextIO, *, is_short: bool
) -> dict[str, object]:
    """Returns the summary. Raises: Stopped, after it was said how to go on."""
    show_progress("looking at what the run needs")
    from agentpeft.launch.checking.preparation import prepare
    from agentpeft.launch.run.fast_dev_run import RandomRewardsActor
    from agentpeft.launch.run.run_loop import run_session
    from agentpeft.policies.workers.learner_group import LearnerActor

    signals, run_dir = StopSignals(), start.run_dir
    try:
        with signals.handle():
            with signals.immediately():
                settings = prepare(start.settings, address, is_new=run_dir is None)
                run_dir = run_dir or make_run_dir(settings)
            start = Start(settings, run_dir, start.checkpoint)
            with lock_run(run_dir), log_to(run_dir):
                if start.checkpoint is not None:
                    change_settings(start)
                kind = RandomRewardsActor if is_short else LearnerActor
                return run_session(start, run_dir, address, signals, output, kind)
    except Stopped as stop:
        print(f"stopped by {stop}; {_how_to_go_on(run_dir)}", file=sys.stderr)
        raise


def _how_to_go_on(run_dir: Path | None) -> str:
    from agentpeft.policies.checkpointing.checkpoints import list_checkpoints

    if run_dir is None or not list_checkpoints(run_dir / "checkpoints"):
        return "there was nothing to save yet"
    return f"continue with: agentpeft train --resume {as_word(run_dir)}"


if __name__ == "__main__":
    sys.exit(main())
