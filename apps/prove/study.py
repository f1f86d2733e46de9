"""A study: which settings and seeds are proven, and what is written of the proof."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentpeft.apps.prove.measures import KINDS, make_kind_settings, measure, read_seed
from agentpeft.apps.prove.page import write_page
from agentpeft.apps.prove.split import RewardProof, make_proof
from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.checking.preparation import prepare
from agentpeft.launch.run.command_line import split_settings
from agentpeft.launch.run.run_folder import lock_run, output_base, read_start
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.loop.evaluation import is_held_out
from agentpeft.policies.settings.config import Settings

_NUM_SEEDS = 3
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

    A quick one has one seed unless told otherwise, half the iterations and at most 200 tasks; what
    `words` set stays. Raises: SettingsError where nothing can be proven by these settings.
    """
    configs, overrides = split_settings(list(words))
    settings = read_start(configs, overrides).settings
    if is_quick:
        num_iterations = -(-settings.training.num_iterations // 2)
        quick = [
            f"training.num_iterations={num_iterations}",
            f"evaluation.num_tasks={min(settings.evaluation.num_tasks, _QUICK_TASKS)}",
            f"evaluation.interval={-(-num_iterations // 2)}",
        ]
        settings = read_start(configs, [*quick, *overrides]).settings
    _check(settings)
    num = num_seeds if num_seeds is not None else 1 if is_quick else _NUM_SEEDS
    chosen = tuple(seeds or range(settings.seed, settings.seed + num))
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0:
        raise SettingsError(f"seeds must be one or more different numbers >= 0, got {chosen}")
    name = settings.experiment + ("-quick" if is_quick else "")
    base = output_base(Path(settings.output.dir))
    return ProofPlan(settings, chosen, Path(output or base / "prove" / name).absolute())


def _check(settings: Settings) -> None:
    """Raises: SettingsError where nothing can be proven by these settings."""
    if not settings.is_rl:
        raise SettingsError("prove asks what rewards taught: training.algorithm 'sft' has none")
    if settings.training.shuffle_rewards:
        raise SettingsError("prove shuffles rewards itself: leave out training.shuffle_rewards")
    if settings.evaluation.num_tasks < 2:
        raise SettingsError(
            "prove measures held-out tasks: evaluation.num_tasks must be >= 2, got "
            f"{settings.evaluation.num_tasks}"
        )
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
    for kind in KINDS:
        make_kind_settings(settings, "base", kind)


def run_study(plan: ProofPlan, signals: StopSignals | None = None) -> RewardProof:
    """Trains and measures what is missing, writes the results and the page, returns the proof.

    Raises: SettingsError where the folder is of other settings, or another process runs it;
    TrainingError; Stopped, where `signals` are given.
    """
    signals = signals or StopSignals()
    with signals.immediately():
        settings = prepare(plan.settings, None, is_new=True)
    plan.folder.mkdir(parents=True, exist_ok=True)
    with lock_run(plan.folder), ExitStack() as cluster:
        results = []
        for seed in plan.seeds:
            seeded = settings.model_copy(update={"seed": seed})
            folder = plan.folder / f"seed-{seed}"
            measure(seeded, folder, signals, cluster)
            results.append(read_seed(folder, seed))
        proof = make_proof(results)
        write_results(proof, plan.folder)
        write_page(proof, plan.folder)
    return proof


def summarize(proof: RewardProof) -> dict[str, Any]:
    """Returns the proof without its tasks, JSON-able."""
    by_skill, by_seed = (
        {str(name): asdict(figures) for name, figures in group.items()}
        for group in (proof.by_skill, proof.by_seed)
    )
    return {
        **asdict(proof.verdict),
        **asdict(proof.figures),
        "by_skill": by_skill,
        "by_seed": by_seed,
        "curves": {str(result.seed): result.curves for result in proof.seeds},
    }


def write_results(proof: RewardProof, folder: Path) -> None:
    """Writes `results.json`, and `tasks.jsonl` with a line for each task of each seed."""
    content = json.dumps(summarize(proof), indent=1, ensure_ascii=False)
    write_file(folder / "results.json", content.encode())
    lines = [
        json.dumps({"seed": result.seed, **asdict(task)}, ensure_ascii=False) + "\n"
        for result in proof.seeds
        for task in result.tasks
    ]
    write_file(folder / "tasks.jsonl", "".join(lines).encode())
