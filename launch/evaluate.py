"""Evaluates policies on held-out tasks: models, adapters, merged ones, endpoints, baselines.

    python launch/evaluate.py outputs/quickstart/20260101-120000 --policy base --modes both
    python launch/evaluate.py arithmetic_add --adapter path/a --adapter old=path/b
    python launch/evaluate.py db_bench --policy oracle evaluation.num_tasks=50
    python launch/evaluate.py db_bench --endpoint http://localhost:8000/v1 --endpoint-model my-model
    python launch/evaluate.py db_bench --policy base --replay 4 --votes 3

Tasks are those of `evaluation.num_tasks`, with `evaluation.samples_per_task` episodes each: one is
greedy, several are sampled and give pass@k. It writes results.json and every episode. The same
command with --output goes on where it was interrupted. The last line is JSON.
Exit status: 0 done; 1 a failure; 2 wrong input; 130 interrupted.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import logging
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from agentpeft.envs import SettingsError
from agentpeft.launch.command_line import CommandParser, add_settings, run_command, split_settings
from agentpeft.launch.data.task_files import with_task_files
from agentpeft.launch.evaluating.evaluation_files import EvaluationFiles
from agentpeft.launch.evaluating.merging import find_adapter
from agentpeft.launch.evaluating.players import KEY_VARIABLE, Contestant, Kind, Methods, seated
from agentpeft.launch.run.run_folder import output_base, read_start, shown
from agentpeft.policies.checkpoints import CONFIG_FILE
from agentpeft.policies.evaluation import compute_success_metrics
from agentpeft.policies.rollout.env_runner import EnvRunner, GroupRequest
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)
_MAX_ROUND = 128
"""Tasks that are played at once, and lost if that is interrupted."""
_MODES: dict[str, dict[Kind, str]] = {
    "adapter": {"adapter": ""},
    "merged": {"merged": "-merged"},
    "both": {"adapter": "", "merged": "-merged"},
}
"""By mode, how an adapter plays, and what its name then ends with."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    return run_command(_run, make_parser().parse_intermixed_args(argv))


def _run(args: Namespace) -> int:
    configs, overrides = split_settings(args.settings)
    run = Path(configs[0]) if (Path(configs[0]) / CONFIG_FILE).is_file() else None
    if run is not None:
        configs[0] = str(run / CONFIG_FILE)
    settings = with_task_files(read_start(configs, overrides).settings)
    contestants = _contestants(args, settings, run)
    methods = Methods(args.replay, args.votes, args.endpoint_options)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    own = output_base(Path(settings.output.dir)) / "evaluations" / settings.experiment / stamp
    output = (args.output or own).absolute()
    summary = evaluate(settings, contestants, methods, output)
    print(json.dumps({"output": shown(output), **summary}))
    return 0


def evaluate(
    settings: Settings, contestants: Sequence[Contestant], methods: Methods, output: Path
) -> dict[str, Any]:
    """Plays all contestants' missing episodes, writes `output`, and returns the summary.

    Raises: SettingsError where `output` is of other settings, and what a contestant raises.
    """
    if settings.evaluation.num_tasks == 0:
        raise SettingsError("evaluation.num_tasks is 0: nothing to play")
    if methods.num_voters > 1 and settings.env_runners.temperature == 0:
        raise SettingsError("--votes of equal samples: env_runners.temperature is 0")
    output_settings = settings.output.model_copy(update={"episodes": True})
    settings = settings.model_copy(update={"output": output_settings})
    disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(settings.env_runners.num_threads)
    files = EvaluationFiles(output, settings, methods)
    files.begin(contestants)
    for contestant in contestants:
        _play(settings, contestant, methods, files)
        summary = files.write_results()
    return summary


def _play(
    settings: Settings, contestant: Contestant, methods: Methods, files: EvaluationFiles
) -> None:
    """Plays what is missing and keeps it; with replay one task at a time, each after the last."""
    missing, samples = files.missing(contestant), settings.evaluation.samples_per_task
    at_once = min(_MAX_ROUND, max(1, settings.env_runners.max_concurrent_episodes // samples))
    size = 1 if methods.num_replayed else at_once
    with ExitStack() as stack:
        if missing:
            seat = stack.enter_context(seated(settings, contestant, methods))
            seat.replay.add(files.records(contestant))
            runner = stack.enter_context(closing(EnvRunner(seat.settings, player=seat.player)))
        for first in range(0, len(missing), size):
            positions = missing[first : first + size]
            _, report = runner.sample([GroupRequest(p, samples, "eval") for p in positions])
            records = [seat.recount(record) for record in report.records]
            seat.replay.add(records)
            files.append(contestant, records)
    metrics = compute_success_metrics(files.records(contestant))
    numbers = [metrics.get(f"success_rate{end}", 0.0) for end in ("", "_low", "_high")]
    text = "success {:.1%} (95 %: {:.1%} to {:.1%})".format(*numbers)
    logger.info("%s: %s in %d episodes", contestant.name, text, metrics["num_episodes"])


def _contestants(args: Namespace, settings: Settings, run: Path | None) -> list[Contestant]:
    """Returns all who are named, and a run's newest adapter; of none the settings' model."""
    if bool(args.endpoint) != bool(args.endpoint_model):
        raise SettingsError("--endpoint URL and --endpoint-model NAME need each other")
    if args.endpoint and find_spec("openai") is None:
        raise SettingsError("--endpoint needs the extra 'openai': pip install 'agentpeft[openai]'")
    adapters = args.adapter or ([run] if run else [])
    if not (adapters or args.policy or args.endpoint) and settings.model.adapter:
        adapters = [settings.model.adapter]
    found: list[Contestant] = []
    for words in adapters:
        name, _, path = str(words).rpartition("=")
        folder = find_adapter(Path(path).expanduser())
        name = name or (folder.parent.name if folder.name == "adapter" else folder.name)
        for kind, end in _MODES[args.modes].items():
            found.append(Contestant(name + end, kind, str(folder)))
    base = found[0].target if found else settings.model.name
    wanted: list[Kind] = args.policy or ([] if found or args.endpoint else ["base"])
    found += [Contestant(kind, kind, base if kind == "base" else "") for kind in wanted]
    found += [Contestant(model, "endpoint", args.endpoint) for model in args.endpoint_model]
    names = [each.file_name for each in found]
    if len(set(names)) < len(names):
        raise SettingsError(f"two policies have one name: {names}; write --adapter NAME=PATH")
    return found


def make_parser() -> ArgumentParser:
    """Returns the command's words."""
    parser = CommandParser(__doc__)
    add_settings(parser)
    add = parser.add_argument
    add("--adapter", action="append", default=[], metavar="[NAME=]PATH", help="may be repeated")
    add("--modes", choices=("adapter", "merged", "both"), default="adapter", help="of adapters")
    add(
        "--policy",
        action="append",
        default=[],
        choices=("base", "oracle", "random"),
        help="the first adapter's base (or model.name), a perfect agent, random text",
    )
    add("--endpoint", metavar="URL", help=f"an OpenAI-compatible one; its key: {KEY_VARIABLE}")
    add("--endpoint-model", action="append", default=[], metavar="NAME", help="may be repeated")
    add(
        "--endpoint-options",
        type=json.loads,
        default={},
        metavar="JSON",
        help="more fields of its requests",
    )
    add("--replay", type=int, default=0, metavar="N", help="the last N successes in the prompt")
    add("--votes", type=int, default=1, metavar="N", help="N samples of each turn, one vote")
    add("--output", type=Path, metavar="DIR", help="where to write, or to go on")
    return parser


if __name__ == "__main__":
    sys.exit(main())
