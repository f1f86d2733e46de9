"""What is trained and played for each seed, from where an earlier call stopped.

A seed's folder has the runs `true`, `shuffled` and `form`, and the evaluation `samples` of the
base. All stand on one base and one list of held-out tasks.
"""

import logging
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from agentpeft.apps.lifelong.stage_runs import is_done, make_run_settings, train
from agentpeft.apps.prove.form import with_form_reward
from agentpeft.apps.prove.split import SeedResult, TaskResult
from agentpeft.envs import Outcome
from agentpeft.launch.checking.preparation import prepare_tiny
from agentpeft.launch.evaluating import contest
from agentpeft.launch.evaluating.players import Contestant, Methods
from agentpeft.launch.reporting.run_data import read_rows, read_run, read_sessions, to_record
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.models.load import load_base
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)
KINDS = ("true", "shuffled", "form")
"""The runs of a seed: with the settings' rewards, with shuffled ones, with those for form alone."""
NUM_SAMPLES = 8


def make_kind_settings(settings: Settings, base: str, kind: str) -> Settings:
    """Returns the settings of a seed's run on `base`. Raises: SettingsError."""
    adapter = settings.model.adapter
    shared = make_run_settings(
        settings, base, kind, adapter=None if adapter is None else Path(adapter)
    )
    values = shared.model_dump()
    values["output"]["loggers"] = ["episodes"]
    values["evaluation"] = {**settings.evaluation.model_dump(), "samples_per_task": 1}
    values["training"]["shuffle_rewards"] = kind == "shuffled"
    if kind == "form":
        kwargs = settings.environment.kwargs
        values["environment"]["kwargs"] = with_form_reward(kwargs)
        if "reward" in kwargs:  # which evaluations show
            values["evaluation"]["env_kwargs"].setdefault("reward", kwargs["reward"])
        values["curriculum"]["stages"] = [
            with_form_reward(stage) if "reward" in stage else stage
            for stage in values["curriculum"]["stages"]
        ]
    return Settings(**values)


def measure(settings: Settings, folder: Path, signals: StopSignals, cluster: ExitStack) -> None:
    """Trains and plays what is missing of a seed; Ray, if it is needed, ends with `cluster`."""
    with signals.immediately():
        prepare_tiny(settings)
        base = load_base(settings).name if settings.is_tiny else settings.model.name
    by_kind = {kind: make_kind_settings(settings, base, kind) for kind in KINDS}
    _play_samples(by_kind["true"], folder / "samples", signals)
    for kind, run_settings in by_kind.items():
        if run_settings.env_runners.num_env_runners > 0 and not is_done(folder / kind):
            _start_ray(folder, signals, cluster)
        logger.info("seed %d, rewards: %s", settings.seed, kind)
        train(run_settings, folder / kind, signals)


def _play_samples(settings: Settings, folder: Path, signals: StopSignals) -> None:
    """Plays the base's samples, or those of the adapter that training begins from."""
    adapter, samples = settings.model.adapter, {"samples_per_task": NUM_SAMPLES}
    evaluation = settings.evaluation.model_copy(update=samples)
    base = Contestant("base", "adapter" if adapter else "base", adapter or settings.model.name)
    with signals.immediately():
        sampled = settings.model_copy(update={"evaluation": evaluation})
        contest.evaluate(sampled, [base], Methods(), folder)


def _start_ray(folder: Path, signals: StopSignals, cluster: ExitStack) -> None:
    """Starts Ray, or joins RAY_ADDRESS, unless that was done for an earlier run."""
    from agentpeft.launch.run.ray_session import ray_session

    with signals.immediately():
        cluster.callback(signals.take_back)  # Ray resets SIGTERM when it ends
        cluster.enter_context(ray_session(None, folder))
        signals.take_back()


def read_seed(folder: Path, seed: int) -> SeedResult:
    """Returns what was measured of a seed. Raises: TrainingError where it is not of one task."""
    played = {kind: read_evaluation(folder / kind) for kind in KINDS}
    before = read_evaluation(folder / "true", is_first=True)
    played = {"before": before, "after": played.pop("true"), **played}
    samples: defaultdict[int, list[EpisodeRecord]] = defaultdict(list)
    for row in read_rows(folder / "samples" / "sessions" / "base.jsonl"):
        samples[row["group_id"]].append(to_record(row))
    tasks = []
    for position, record in sorted(before.items()):
        sampled = samples[position]
        records = {name: evaluated.get(position) for name, evaluated in played.items()}
        ids = {other.task_id if other else None for other in (*records.values(), *sampled)}
        if len(sampled) != NUM_SAMPLES or ids != {record.task_id}:
            raise TrainingError(
                f"{folder}: held-out task {position} is {record.task_id!r} for the base, and "
                f"{ids} in {len(sampled)} samples and the runs: begin again in another --output"
            )
        result = TaskResult(
            position,
            record.task_id,
            record.skills,
            **{name: other is not None and _is_solved(other) for name, other in records.items()},
            num_samples=NUM_SAMPLES,
            num_sampled_successes=sum(map(_is_solved, sampled)),
        )
        tasks.append(result)
    curves = {}
    for kind in KINDS:
        steps, rates = read_run(folder / kind).series("eval/success_rate")
        curves[kind] = dict(zip(steps, rates, strict=True))
    return SeedResult(seed, tuple(tasks), curves)


def read_evaluation(run_dir: Path, *, is_first: bool = False) -> dict[int, EpisodeRecord]:
    """Returns the episodes of a run's last evaluation, or of its first, by the task's position."""
    rows = list(read_sessions(run_dir, "eval"))
    choose = min if is_first else max
    iteration = choose((row["iteration"] for row in rows), default=0)
    return {r["group_id"]: to_record(r) for r in rows if r["iteration"] == iteration}


def _is_solved(record: EpisodeRecord) -> bool:
    return record.outcome is Outcome.SUCCESS
