"""An evaluation: who plays, and every episode that is still to be played."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers.utils.logging import disable_progress_bar

from agentpeft.envs import SettingsError
from agentpeft.launch.evaluating.adapter_bank import is_bank, read_bank
from agentpeft.launch.evaluating.evaluation_files import EvaluationFiles
from agentpeft.launch.evaluating.players import Contestant, Kind, Methods, ReadyPlayer, playing
from agentpeft.launch.run.ending import say_policy
from agentpeft.launch.run.run_folder import find_adapter
from agentpeft.policies.delivery.adapter_files import is_whole_model
from agentpeft.policies.engines.endpoint_address import check_url
from agentpeft.policies.errors import EngineError
from agentpeft.policies.loop.evaluation import compute_success_metrics
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.environments import limit_evaluation
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)
Opener: TypeAlias = Callable[[Settings, Contestant, Methods], AbstractContextManager[ReadyPlayer]]
_MANY = 8
"""If none of the first tasks, at least so many, was played to its end, no further one is tried."""
_MAX_ROUND = 128
"""Tasks of a deterministic round, which is kept as a whole."""
_ROUNDS_AHEAD = 16
"""How often the slots could be filled by the tasks that are made ahead."""
_MODES: dict[str, dict[Kind, str]] = {
    "adapter": {"adapter": ""},
    "merged": {"merged": "-merged"},
    "both": {"adapter": "", "merged": "-merged"},
}
"""By mode, how an adapter plays, and what its name then ends with."""


def find_contestants(
    settings: Settings,
    adapters: Sequence[str],
    mode: str,
    policies: Sequence[Kind],
    endpoint: str | None,
    endpoint_models: Sequence[str],
) -> list[Contestant]:
    """Returns all who are named; where nobody is, the settings' own model plays.

    Adapters are "[NAME=]PATH", policies base, oracle or random. What a run on all weights has saved
    plays once, whatever the mode, and its base is the settings' model. A bank's folder stands for
    all of its adapters, as an adapter or, served by their names, as an endpoint's model. Raises:
    SettingsError.
    """
    if bool(endpoint) != bool(endpoint_models):
        raise SettingsError("--endpoint URL and --endpoint-model NAME need each other")
    if endpoint and find_spec("openai") is None:
        raise SettingsError("--endpoint needs the extra 'openai': pip install 'agentpeft[openai]'")
    if endpoint:
        check_url("--endpoint", endpoint)
    if not (adapters or policies or endpoint) and settings.model.adapter:
        adapters = [settings.model.adapter]
    contestants: list[Contestant] = []
    for words in adapters:
        contestants += _to_contestants(words, mode)
    has_base = bool(contestants) and contestants[0].kind != "whole"
    base = contestants[0].target if has_base else settings.model.name
    if contestants and contestants[0].bank:
        base = str(next(iter(read_bank(Path(base)).adapters.values())))
    if not (contestants or policies or endpoint):
        policies = ["base"]
    contestants += [Contestant(kind, kind, base if kind == "base" else "") for kind in policies]
    contestants += [_to_served(model, endpoint or "") for model in endpoint_models]
    names = [contestant.file_name for contestant in contestants]
    if len(set(names)) < len(names):
        raise SettingsError(f"two policies have one name: {names}; write --adapter NAME=PATH")
    return contestants


def _to_contestants(words: str, mode: str) -> list[Contestant]:
    """Returns who an adapter, "[NAME=]PATH", plays as. Raises: SettingsError."""
    name, _, path = words.rpartition("=")
    bank = Path(path).expanduser().resolve()
    if is_bank(bank) and mode != "adapter":
        raise SettingsError(
            f"--modes {mode}: the bank {path} has an adapter for each prompt, which cannot be "
            "merged into one model: leave out --modes, or merge them one by one (agentpeft merge)"
        )
    if is_bank(bank):
        return [Contestant(name or bank.name, "bank", str(bank), str(bank))]
    folder = find_adapter(Path(path).expanduser())
    name = name or (folder.parent.name if folder.name == "adapter" else folder.name)
    kinds: dict[Kind, str] = {"whole": ""} if is_whole_model(folder) else _MODES[mode]
    return [Contestant(name + end, kind, str(folder)) for kind, end in kinds.items()]


def _to_served(model: str, url: str) -> Contestant:
    """Returns who an endpoint's model plays as: itself, or a bank whose adapters are served."""
    bank = Path(model).expanduser().resolve()
    if is_bank(bank):
        return Contestant(bank.name, "endpoint", url, str(bank))
    return Contestant(model, "endpoint", url)


def evaluate(
    settings: Settings,
    contestants: Sequence[Contestant],
    methods: Methods,
    output: Path,
    examples: Sequence[EpisodeRecord] | None = None,
    opener: Opener = playing,
) -> dict[str, Any]:
    """Plays all contestants' missing episodes, writes `output`, and returns the summary.

    `examples` are the episodes whose successes are replayed in prompts; None: each contestant's
    own, as it plays. `opener` opens a player. Raises: SettingsError where `output` is of other
    settings, and what a contestant raises; where that keeps one from playing at all, before
    anything is written.
    """
    if settings.evaluation.num_tasks == 0:
        raise SettingsError("evaluation.num_tasks is 0: nothing to play")
    if methods.num_voters > 1 and settings.env_runners.temperature == 0:
        raise SettingsError("--votes of equal samples: env_runners.temperature is 0")
    output_settings = settings.output.model_copy(update={"loggers": ("episodes",)})
    settings = settings.model_copy(update={"output": output_settings})
    disable_progress_bar()  # type: ignore[no-untyped-call]
    num_runners = min(settings.env_runners.num_env_runners, os.cpu_count() or 1)
    torch.set_num_threads(max(settings.num_threads, num_runners))  # here one engine plays
    num_samples = settings.evaluation.samples_per_task
    most = max(settings.env_runners.max_concurrent_episodes // num_samples, 1)
    at_once = min(_MAX_ROUND, most) if settings.deterministic else _ROUNDS_AHEAD * most
    if methods.num_replayed > 0 and examples is None:
        at_once = most = 1  # each prompt has the successes before it
    with closing(EvaluationFiles(output, settings, methods)) as files, _make_bar() as bar:
        files.begin(contestants)
        if any(map(files.missing, contestants)):
            files.limit(limit_evaluation(settings).evaluation.num_tasks)
        waiting = [contestant for contestant in contestants if files.missing(contestant)]
        for contestant in waiting[1:]:  # one that cannot play is told before another has, for hours
            with open_runner(opener(settings, contestant, methods)):
                pass
        for contestant in contestants:
            player = opener(settings, contestant, methods)
            _play(contestant, player, (most, at_once), files, examples, bar)
            summary = files.write_results()
    return summary


def _make_bar() -> Progress:
    """Returns a bar of one task, shown where standard error is a terminal."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        disable=not sys.stderr.isatty(),
    )
    bar.add_task("loading the policies", total=None)
    return bar


@contextmanager
def open_runner(
    player: AbstractContextManager[ReadyPlayer],
) -> Iterator[tuple[ReadyPlayer, EnvRunner]]:
    """Yields a contestant's player and the runner in which it plays. Raises: as `playing`."""
    with player as ready, closing(EnvRunner(ready.settings, player=ready.player)) as runner:
        yield ready, runner


def _play(
    contestant: Contestant,
    player: AbstractContextManager[ReadyPlayer],
    sizes: tuple[int, int],
    files: EvaluationFiles,
    examples: Sequence[EpisodeRecord] | None,
    bar: Progress,
) -> None:
    """Plays what is missing, and keeps each task as it is finished, or each deterministic round.

    `sizes`: how many tasks are in play at once, and in a round.
    """
    missing = files.missing(contestant)
    name, (task,) = say_policy(contestant.name), bar.task_ids
    firsts = missing[: max(_MANY, sizes[0])]
    waiting, fault = set(firsts), ""
    with ExitStack() as stack:
        reports: Iterator[SampleReport] = iter(())
        if missing:
            ready, runner = stack.enter_context(open_runner(player))
            ready.replay.add(files.records(contestant) if examples is None else examples)
            reports = _play_rounds(ready.settings, runner, missing, sizes[1])
        bar.update(task, description=name, total=len(missing), completed=0)
        for report in reports:
            records = [ready.recount(record) for record in report.records]
            if examples is None:
                ready.replay.add(records)
            if records:
                files.append(contestant, records)
            bar.advance(task, len(report.requests))
            waiting.difference_update(request.group_id for request in report.requests)
            fault = fault or report.last_fault
            if not waiting and not files.records(contestant):
                limit_s = ready.settings.env_runners.episode_timeout_s
                silence = f"no answer within env_runners.episode_timeout_s ({limit_s:g})"
                raise EngineError(
                    f"{contestant.name}: none of {len(firsts)} tasks was played to its end: "
                    f"{fault or silence}"
                )
    records = files.records(contestant)
    metrics, num_tasks = compute_success_metrics(records), len({r.task_id for r in records})
    numbers = [metrics.get(f"success_rate{end}", 0.0) for end in ("", "_low", "_high")]
    text = "success {:.1%} (95 %: {:.1%} to {:.1%})".format(*numbers)
    played = f"{len(records)} episode{'s' * (len(records) != 1)}"
    if num_tasks < len(records):
        played += f" of {num_tasks} task{'s' * (num_tasks != 1)}"
    logger.info("%s: %s in %s", name, text, played)


def _play_rounds(
    settings: Settings, runner: EnvRunner, positions: Sequence[int], at_once: int
) -> Iterator[SampleReport]:
    """Plays tasks, `at_once` in a round; yields what is finished.

    What is decoded together decides the rounding, so a deterministic round is one report: if it
    is interrupted, all of it is played again.
    """
    samples = settings.evaluation.samples_per_task
    for first in range(0, len(positions), at_once):
        requests = [GroupRequest(p, samples, "eval") for p in positions[first : first + at_once]]
        played = runner.play(requests)
        if settings.deterministic:
            yield SampleReport(chain.from_iterable(played))
        else:
            yield from map(SampleReport, played)
