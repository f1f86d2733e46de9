"""What is trained and played for each seed, from where an earlier call stopped.

A seed's folder has the runs `true`, `shuffled` and `form`, and the evaluation `samples` of the
base. All stand on one base and one list of held-out tasks.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from agentpeft.apps.lifelong.stage_runs import is_done, make_run_settings, train
from agentpeft.apps.prove.form import is_graded, keep_shown_reward, with_form_reward
from agentpeft.apps.prove.split import SeedResult, TaskResult
from agentpeft.envs import Outcome
from agentpeft.launch.evaluating import contest
from agentpeft.launch.evaluating.players import Contestant, Methods, playing
from agentpeft.launch.reporting.run_data import read_rows, read_run, read_sessions, to_record
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import SOURCES, without_training_rewards

logger = logging.getLogger(__name__)
REWARDS = ("true", "shuffled", "form")
"""The runs of a seed: with the settings' rewards, with shuffled ones, with those for form alone."""
NUM_SAMPLES = 8
_MAX_OTHER, _FEW = 0.1, 3
"""The share of tasks, and how many more, on which one base may do otherwise in the next run."""


def with_rewards(settings: Settings, base: str, rewards: str) -> Settings:
    """Returns the settings of a seed's run on `base` with one of `REWARDS`. Raises: SettingsError.

    With vLLM it plays by the study's engine, unless the settings name `shared_engines`.
    """
    adapter = settings.model.adapter
    shared = make_run_settings(
        settings,
        base,
        rewards,
        adapter=None if adapter is None else Path(adapter),
        has_own_engine=settings.env_runners.shared_engines is not None,
    )
    values = shared.model_dump()
    values["output"]["loggers"] = ["episodes"]
    values["evaluation"] = {**settings.evaluation.model_dump(), "samples_per_task": 1}
    values["training"]["shuffle_rewards"] = rewards == "shuffled"
    if rewards == "form":
        env_id, kwargs = settings.environment.id, settings.environment.kwargs
        values["environment"]["kwargs"] = with_form_reward(kwargs)
        shown = {**keep_shown_reward(env_id, kwargs), **settings.evaluation.env_kwargs}
        values["evaluation"]["env_kwargs"] = shown
        values["curriculum"]["stages"] = [
            with_form_reward(stage)
            if stage.keys() & {"reward", SOURCES}
            else without_training_rewards(stage)
            for stage in values["curriculum"]["stages"]
        ]
    return Settings(**values)


def has_study_engine(settings: Settings) -> bool:
    """Returns whether all runs and samples are played by one vLLM of this process."""
    limits = settings.env_runners
    return limits.engine == "vllm" and limits.shared_engines is None


def measure(
    settings: Settings,
    base: str,
    folder: Path,
    signals: StopSignals,
    cluster: ExitStack,
    opener: contest.Opener = playing,
) -> None:
    """Trains and plays what is missing of a seed; Ray, if it is needed, ends with `cluster`.

    `opener` opens the player of the base's samples.
    """
    runs = {rewards: with_rewards(settings, base, rewards) for rewards in REWARDS}
    sampled = runs["true"].model_copy(update={"env_runners": settings.env_runners})
    _play_samples(sampled, folder / "samples", signals, opener)
    for rewards, run_settings in runs.items():
        if run_settings.env_runners.num_env_runners > 0 and not is_done(folder / rewards):
            _start_ray(folder, signals, cluster)
        logger.info("seed %d, rewards: %s", settings.seed, rewards)
        train(run_settings, folder / rewards, signals)


def _play_samples(
    settings: Settings, folder: Path, signals: StopSignals, opener: contest.Opener
) -> None:
    """Plays the base's samples, or those of the adapter that training begins from."""
    adapter, name = settings.model.adapter, settings.model.name
    if (Path(name).expanduser() / ADAPTER_CONFIG).is_file():
        adapter = name
    evaluation = settings.evaluation.model_copy(update={"samples_per_task": NUM_SAMPLES})
    base = Contestant("base", "adapter" if adapter else "base", adapter or name)
    with signals.immediately():
        sampled = settings.model_copy(update={"evaluation": evaluation})
        contest.evaluate(sampled, [base], Methods(), folder, opener=opener)


def _start_ray(folder: Path, signals: StopSignals, cluster: ExitStack) -> None:
    """Starts Ray, or joins RAY_ADDRESS, unless that was done for an earlier run."""
    from agentpeft.launch.run.ray_session import ray_session

    with signals.immediately():
        cluster.callback(signals.take_back)  # Ray resets SIGTERM when it ends
        cluster.enter_context(ray_session(None, folder))
        signals.take_back()


def read_seed(folder: Path, seed: int, settings: Settings | None = None) -> SeedResult:
    """Returns what was measured of a seed, on the tasks that were played in every evaluation.

    `settings` say how many there are to play; None: as many as were played in any. The programs of
    `env_runners.agent` may do otherwise each time.

    An evaluation lacks an episode whose environment failed, or was too slow. Raises: TrainingError
    where the evaluations are of other tasks or bases, or have no task in common.
    """
    before = read_evaluation(folder / "true", is_first=True)
    if settings is None or not settings.env_runners.agent:
        for rewards in REWARDS[1:]:
            _check_same_base(before, folder / rewards)
    greedy = {
        "before": before,
        "after": read_evaluation(folder / "true"),
        "shuffled": read_evaluation(folder / "shuffled"),
        "form": read_evaluation(folder / "form"),
    }
    samples: defaultdict[int, list[EpisodeRecord]] = defaultdict(list)
    for row in read_rows(folder / "samples" / "sessions" / "base.jsonl"):
        samples[row["group_id"]].append(to_record(row))
    positions: Sequence[int] = sorted(samples.keys() | set().union(*greedy.values()))
    if settings is not None:
        positions = range(settings.evaluation.num_tasks)
    tasks = []
    for position in positions:
        records = {n: played[position] for n, played in greedy.items() if position in played}
        sampled = samples[position]
        ids = {record.task_id for record in (*records.values(), *sampled)}
        if len(ids) > 1:
            raise TrainingError(
                f"{folder}: held-out task {position} is not the same in all evaluations, but "
                f"{', '.join(sorted(map(repr, ids)))}: begin again in another --output"
            )
        if len(records) < len(greedy) or len(sampled) < NUM_SAMPLES:
            continue
        result = TaskResult(
            position,
            records["before"].task_id,
            records["before"].skills,
            **{name: _is_solved(record) for name, record in records.items()},
            num_samples=NUM_SAMPLES,
            num_sampled_successes=sum(map(_is_solved, sampled)),
            is_base_graded=is_graded(records["before"].outcome),
        )
        tasks.append(result)
    if not tasks:
        raise TrainingError(f"{folder}: no held-out task was played in every evaluation")
    num_unplayed = len(positions) - len(tasks)
    if num_unplayed:
        logger.warning(
            "seed %d: %d of %d held-out tasks count for nothing: in one of their episodes the "
            "environment failed, or was too slow",
            *(seed, num_unplayed, len(positions)),
        )
    runs = {rewards: read_run(folder / rewards) for rewards in REWARDS}
    curves = {
        rewards: dict(zip(*run.series("eval/success_rate"), strict=True))
        for rewards, run in runs.items()
    }
    seen = chain.from_iterable(run.series("eval/num_seen_tasks")[1] for run in runs.values())
    return SeedResult(seed, tuple(tasks), curves, num_unplayed, int(max(seen, default=0)))


def _check_same_base(played: Mapping[int, EpisodeRecord], other: Path) -> None:
    """Raises: TrainingError where a run did not begin from the base that played, as play shows."""
    theirs = read_evaluation(other, is_first=True)
    places = played.keys() & theirs.keys()
    num_other = sum(_is_solved(played[place]) != _is_solved(theirs[place]) for place in places)
    if num_other > _MAX_OTHER * len(places) + _FEW:
        raise TrainingError(
            f"{other} began from another model than {other.with_name(REWARDS[0])}, as {num_other} "
            f"of {len(places)} held-out tasks show: was it changed in between? Begin again in "
            "another --output"
        )


def read_evaluation(run_dir: Path, *, is_first: bool = False) -> dict[int, EpisodeRecord]:
    """Returns the episodes of a run's last evaluation, or of its first, by the task's position."""
    rows = list(read_sessions(run_dir, "eval"))
    choose = min if is_first else max
    iteration = choose((row["iteration"] for row in rows), default=0)
    return {r["group_id"]: to_record(r) for r in rows if r["iteration"] == iteration}


def _is_solved(record: EpisodeRecord) -> bool:
    return record.outcome is Outcome.SUCCESS
