"""A study: which settings and seeds are proven, and what is written of the proof."""

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentpeft.apps.lifelong.stage_runs import check_plan, make_base, make_folder
from agentpeft.apps.lifelong.study_engine import StudyEngine
from agentpeft.apps.prove.form import takes_reward
from agentpeft.apps.prove.measures import (
    REWARDS,
    has_study_engine,
    measure,
    read_seed,
    with_rewards,
)
from agentpeft.apps.prove.page import write_page
from agentpeft.apps.prove.split import RewardProof, SeedResult, make_proof
from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.checking.machine_checks import try_environments
from agentpeft.launch.checking.preparation import prepare
from agentpeft.launch.evaluating.contest import Opener
from agentpeft.launch.evaluating.players import playing
from agentpeft.launch.run.command_line import split_settings
from agentpeft.launch.run.run_folder import lock_run, output_base, read_start
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.loop.evaluation import is_held_out
from agentpeft.policies.rollout.environments import limit_evaluation
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)
_NUM_SEEDS, _MAX_SEEDS = 3, 100
_QUICK_TASKS = 200


@dataclass(frozen=True)
class ProofPlan:
    """What is proven, with which seeds, and where it is written."""

    settings: Settings
    seeds: tuple[int, ...]
    folder: Path


def plan_study(
    words: Sequence[str],
    num_seeds: int | None = None,
    seeds: Sequence[int] = (),
    *,
    is_quick: bool = False,
    output: Path | str | None = None,
) -> ProofPlan:
    """Returns the study that `words`, configs and then dotted settings, ask for.

    A quick one has one seed unless told otherwise, half the iterations, at most 200 tasks, one
    evaluation midway, and plays the built-in model in this process; what `words` set stays.
    Raises: SettingsError where nothing can be proven by these settings.
    """
    configs, overrides = split_settings(list(words))
    # Without an interval, which is refused with num_tasks = 0, so that num_tasks is named
    start = read_start(configs, ["evaluation.interval=0", *overrides]).settings
    _check_num_tasks(start)
    if is_quick:
        quick = [
            f"training.num_iterations={-(-start.training.num_iterations // 2)}",
            f"evaluation.num_tasks={min(start.evaluation.num_tasks, _QUICK_TASKS)}",
        ]
        if _can_be_serial(start):  # three times, runners would import longer than they save
            quick.append("env_runners.num_env_runners=0")
        start = read_start(configs, ["evaluation.interval=0", *quick, *overrides]).settings
        half = -(-start.training.num_iterations // 2)
        overrides = [*quick, f"evaluation.interval={half}", *overrides]
    settings = read_start(configs, overrides).settings
    _check(settings)
    default = 1 if is_quick else _NUM_SEEDS
    chosen = tuple(seeds) or _count_seeds(
        settings.seed, default if num_seeds is None else num_seeds
    )
    if seeds and num_seeds is not None:
        raise SettingsError(
            f"name seeds or say how many, not both: got seeds {chosen}, num_seeds {num_seeds}"
        )
    if len(set(chosen)) < len(chosen) or not all(0 <= seed < 2**63 for seed in chosen):
        raise SettingsError(f"seeds must be different numbers from 0 to 2**63 - 1, got {chosen}")
    name = settings.experiment + ("-quick" if is_quick else "")
    base = output_base(Path(settings.output.dir))
    return ProofPlan(settings, chosen, Path(output or base / "prove" / name).absolute())


def _can_be_serial(settings: Settings) -> bool:
    has_engines = settings.env_runners.shared_engines is not None
    is_alone = settings.learners.num_learners == 1 and not has_engines
    return settings.is_tiny and is_alone and settings.max_adapter_lag == 0


def _count_seeds(first: int, num_seeds: int) -> tuple[int, ...]:
    if not 1 <= num_seeds <= _MAX_SEEDS:
        raise SettingsError(
            f"the number of seeds must be from 1 to {_MAX_SEEDS}, got {num_seeds}: name single "
            "seeds with a comma, as 5,6 or 5,"
        )
    return tuple(range(first, first + num_seeds))


def _check_num_tasks(settings: Settings) -> None:
    if settings.evaluation.num_tasks < 2:
        raise SettingsError(
            "prove measures held-out tasks: evaluation.num_tasks must be >= 2, got "
            f"{settings.evaluation.num_tasks}"
        )


def _check(settings: Settings) -> None:
    """Raises: SettingsError where nothing can be proven by these settings."""
    if not settings.is_rl:
        raise SettingsError("prove asks what rewards taught: training.algorithm 'sft' has none")
    if settings.training.shuffle_rewards:
        raise SettingsError("prove shuffles rewards itself: leave out training.shuffle_rewards")
    if not is_held_out(settings):
        raise SettingsError(
            "prove measures tasks that training cannot draw: set environment.kwargs.split="
            "train and evaluation.env_kwargs.split=test, or name other data there"
        )
    if not settings.is_tiny and settings.warm_start.num_steps > 0:
        raise SettingsError(
            "prove compares with the policy that RL begins from: train warm_start.num_steps "
            f"({settings.warm_start.num_steps}) first, and give model.adapter its adapter"
        )
    for rewards in REWARDS:
        with_rewards(settings, "base", rewards)


def run_study(plan: ProofPlan, signals: StopSignals | None = None) -> RewardProof:
    """Trains and measures what is missing, writes the results and the page, returns the proof.

    Raises: SettingsError where the folder is of other settings, or another process runs it;
    TrainingError; Stopped, where `signals` are given.
    """
    signals = signals or StopSignals()
    with signals.immediately():
        settings = prepare(plan.settings, None, is_new=True)
        _try_form_reward(settings)
        limited = limit_evaluation(settings)
        _check_num_tasks(limited)
    make_folder(plan.folder)
    with lock_run(plan.folder), ExitStack() as cluster, ExitStack() as engine:
        content = settings.model_dump(mode="json", exclude={"output", "seed"})
        check_plan(content, settings, plan.folder)
        results, base = list[SeedResult](), ""
        opener: Opener = playing
        for seed in plan.seeds:
            seeded = settings.model_copy(update={"seed": seed})
            previous, base = base, make_base(seeded, signals)
            if base != previous and has_study_engine(settings):
                engine.close()  # the built-in model is another one with each seed
                opener = engine.enter_context(StudyEngine(seeded, base, 1)).playing
            folder = plan.folder / f"seed-{seed}"
            measure(seeded, base, folder, signals, cluster, opener)
            results.append(read_seed(folder, seed, limited))
        logger.info("computing the figures and their intervals")
        proof = make_proof(results)
        write_results(proof, plan.folder)
        write_page(proof, plan.folder)
    return proof


def _try_form_reward(settings: Settings) -> None:
    """Makes the environments with the reward for form. Raises: SettingsError, as `prepare`."""
    env_id = settings.environment.id
    if not takes_reward(env_id):
        raise SettingsError(
            f"prove rewards form by the argument 'reward', which {env_id} does not have"
        )
    try:
        try_environments(with_rewards(settings, settings.model.name, "form"))
    except SettingsError as error:
        raise SettingsError(f"with the reward for form {env_id} is refused: {error}") from None


def summarize(proof: RewardProof) -> dict[str, Any]:
    """Returns the proof without its tasks, JSON-able."""
    by_skill, by_seed = (
        {str(name): asdict(figures) for name, figures in group.items()}
        for group in (proof.by_skill, proof.by_seed)
    )
    return {
        **asdict(proof.verdict),
        **asdict(proof.figures),
        "num_unplayed": proof.num_unplayed,
        "num_seen": proof.num_seen,
        "by_skill": by_skill,
        "by_seed": by_seed,
        "curves": {str(result.seed): result.curves for result in proof.seeds},
    }


def write_results(proof: RewardProof, folder: Path) -> None:
    """Writes `results.json`, and `tasks.jsonl` with a line for each task of each seed."""
    content = json.dumps(summarize(proof), indent=1, ensure_ascii=False)
    # Half a surrogate pair, which a task's id may hold, becomes JSON's escape of it
    write_file(folder / "results.json", content.encode(errors="backslashreplace"))
    lines = [
        json.dumps({"seed": result.seed, **asdict(task)}, ensure_ascii=False) + "\n"
        for result in proof.seeds
        for task in result.tasks
    ]
    write_file(folder / "tasks.jsonl", "".join(lines).encode(errors="backslashreplace"))
