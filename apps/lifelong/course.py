"""A course: one order of the stages with one seed, learnt by every method, and evaluated."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from agentpeft.apps.lifelong.banks import count_pairs, write_bank
from agentpeft.apps.lifelong.combine_adapters import combine_adapters
from agentpeft.apps.lifelong.methods import NUM_EXAMPLES, Kind, Method
from agentpeft.apps.lifelong.policy_drift import measure_drift
from agentpeft.apps.lifelong.scores import Matrix, compute_kl_new, compute_kl_old, compute_scores
from agentpeft.apps.lifelong.stage_runs import StageRun, folder_bytes, make_run_settings, train
from agentpeft.apps.lifelong.study_engine import with_room
from agentpeft.apps.lifelong.task_sequence import TaskSequence
from agentpeft.envs import Outcome
from agentpeft.launch.evaluating import contest
from agentpeft.launch.evaluating.adapter_bank import PromptRouter
from agentpeft.launch.evaluating.contest import Opener
from agentpeft.launch.evaluating.merging import base_settings, making_with_parents, merge
from agentpeft.launch.evaluating.players import Contestant, Methods, playing
from agentpeft.launch.reporting.run_data import read_rows, to_record
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.models.load import load_base
from agentpeft.policies.rollout.scripted_play import make_text_env
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)
_ROUTER_STREAM = 4
"""Seeds the router's prompts: other numbers than those of tasks, samples and choices (0 to 3)."""
_EXAMPLE_STREAM = 5
"""Seeds the examples of `in_context`, so that they are no stage's evaluated tasks again."""
_NUM_ROUTER_PROMPTS = 200
_NUM_EXAMPLE_TASKS = 64


@dataclass(frozen=True)
class MethodResult:
    """What a method came to: `matrix[i][j]` as in `scores`, or one row for all stages at once.

    `players[i][j]` names who played a cell, "" where several did. `runs` are those that it needs,
    shared ones too. `router_accuracy` is the share of tasks that were sent to their stage's expert.
    `merged_bytes` are those of the one adapter that a method has in place of its runs' own.
    `divergences` are as in `scores`; None where no policy answers a stage's tasks alone, or they
    are not asked for.
    """

    matrix: Matrix
    players: Sequence[Sequence[str]]
    scores: Mapping[str, float | None]
    runs: Sequence[StageRun]
    router_accuracy: float | None = None
    merged_bytes: int | None = None
    divergences: Matrix | None = None


@dataclass(frozen=True)
class CourseResult:
    """A course's stages in the order of learning, and what the methods came to.

    `base` and `expert` are the successes of the base, and of its own expert, on each stage of the
    sequence. Those that the expert does not raise enough are `dropped`: nobody learnt them.
    """

    seed: int
    order: int
    stages: tuple[str, ...]
    dropped: tuple[str, ...]
    base: Mapping[str, float]
    expert: Mapping[str, float]
    methods: Mapping[str, MethodResult]


class TooFewStagesError(TrainingError):
    """Fewer than two stages are raised by their experts, so that nothing can be forgotten."""


@dataclass(frozen=True)
class _Lesson:
    """A method by its name, and the stages that it learns, in an order with a name."""

    name: str
    method: Method
    order: str
    stages: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    """A row of a matrix, and who played its cells; None where several did."""

    successes: list[float]
    players: list[Contestant | None]


class Course:
    """Runs the methods of one seed and order; what is done already is read from its folder."""

    def __init__(
        self,
        sequence: TaskSequence,
        base: Path | str,
        folder: Path,
        signals: StopSignals,
        *,
        has_divergences: bool = True,
        opener: Opener = playing,
    ) -> None:
        """`folder` is shared by the courses of the settings' seed. Raises: as `train`."""
        self._sequence, self._base, self._folder = sequence, base, folder
        self._signals, self._has_divergences, self._opener = signals, has_divergences, opener
        self._runs: list[StageRun] = []
        self._examples: dict[str, list[EpisodeRecord]] = {}
        self._router_accuracy: float | None = None
        self._merged_bytes: int | None = None
        self._learnt: set[tuple[str, ...]] = set()

    def run(self, order: int, methods: Mapping[str, Method]) -> CourseResult | None:
        """Returns what all methods came to.

        Without the dropped stages two orders may be one: None where an earlier one was the same.
        Raises: TooFewStagesError; TrainingError where the evaluations of experts have no task in
        common; as `train`.
        """
        all_stages = self._sequence.order(order)
        base = {name: self._play(self._base_player, name) for name in all_stages}
        expert = {name: self._play(self._expert(name), name) for name in all_stages}
        rises = {name: expert[name] - base[name] for name in all_stages}
        stages = tuple(n for n in all_stages if rises[n] >= self._sequence.entry_rise - 1e-9)
        for name in all_stages:
            verdict = "takes part" if name in stages else "is left out"
            logger.info(
                "%s: base %.1f %%, expert %.1f %%: it %s",
                *(name, 100 * base[name], 100 * expert[name], verdict),
            )
        if len(stages) < 2:
            told = ", ".join(f"{name} {100 * rise:+.1f}" for name, rise in rises.items())
            raise TooFewStagesError(
                f"of {len(rises)} stages {len(stages)} are raised by their experts by entry_rise "
                f"({100 * self._sequence.entry_rise:g} points) or more: {told}; train longer, or "
                "set entry_rise"
            )
        if stages in self._learnt:
            logger.info("order %d: without the dropped stages it is an earlier one", order)
            return None
        self._learnt.add(stages)
        bounds = [base[name] for name in stages], [expert[name] for name in stages]
        results = {}
        for name, method in methods.items():
            lesson = _Lesson(name, method, f"order-{order}", stages)
            results[name] = self._learn(lesson, *bounds)
            _say(name, results[name])
        dropped = tuple(name for name in all_stages if name not in stages)
        return CourseResult(
            self._sequence.settings.seed, order, stages, dropped, base, expert, results
        )

    def _learn(self, lesson: _Lesson, base: list[float], expert: list[float]) -> MethodResult:
        self._runs, self._router_accuracy, self._merged_bytes = [], None, None
        rows = _RULES[lesson.method.kind](self, lesson)
        matrix = [row.successes for row in rows]
        return MethodResult(
            matrix=matrix,
            players=[[each.name if each else "" for each in row.players] for row in rows],
            scores=compute_scores(matrix, base, expert),
            runs=tuple(self._runs),
            router_accuracy=self._router_accuracy,
            merged_bytes=self._merged_bytes,
            divergences=self._measure_drift(rows, lesson.stages),
        )

    def _measure_drift(self, rows: Sequence[_Row], stages: Sequence[str]) -> Matrix | None:
        """Returns how far each stage has moved who answers, on its tasks and the earlier ones'."""
        players = [player for row in rows for player in row.players]
        if not self._has_divergences or len(rows) < 2:
            return None
        if any(each is None or each.name in self._examples for each in players):
            return None
        found = []
        for i in range(1, len(rows)):
            pairs = zip(rows[i - 1].players, rows[i].players, stages, strict=True)
            found.append([self._measure_cell(*pair) for pair in list(pairs)[: i + 1]])
        return found

    def _measure_cell(
        self, previous: Contestant | None, now: Contestant | None, stage: str
    ) -> float:
        if previous is None or now is None or previous == now:
            return 0.0
        path = self._folder / "drift" / f"{previous.name}--{now.name}" / f"{stage}.json"
        with self._signals.immediately():
            return measure_drift(self._settings_of(stage), previous, now, path)

    def _learn_base(self, lesson: _Lesson) -> list[_Row]:
        """Returns the base's rows, which are all alike: it learns nothing."""
        return [self._row_of(self._base_player, lesson.stages) for _ in lesson.stages]

    def _learn_in_context(self, lesson: _Lesson) -> list[_Row]:
        """Returns rows of the base with its successes on training tasks of the row's stage."""
        players = (self._in_context(lesson.name, stage) for stage in lesson.stages)
        return [self._row_of(player, lesson.stages) for player in players]

    def _learn_experts(self, lesson: _Lesson) -> list[_Row]:
        """Returns one row, of each stage's expert on its stage."""
        return [self._row([self._expert(stage) for stage in lesson.stages], lesson.stages)]

    def _learn_chain(self, lesson: _Lesson) -> list[_Row]:
        """Returns rows of an adapter that is trained on from stage to stage."""
        name, method, stages = lesson.name, lesson.method, lesson.stages
        rows, adapter = [], None
        for place, stage in enumerate(stages):
            if place == 0 and method.shares_first_stage:
                player = self._expert(stage)
            else:
                share = method.replay_share if place else 0.0
                shares = dict.fromkeys(stages[:place], share / max(place, 1)) | {stage: 1 - share}
                settings = make_run_settings(
                    self._sequence.of_stages(shares),
                    self._base,
                    f"{name}-{place}-{stage}",
                    adapter=adapter,
                    overrides=method.overrides,
                )
                player = self._train(settings, f"{lesson.order}.{settings.experiment}")
            adapter = self._runs[-1].adapter
            rows.append(self._row_of(player, stages))
        return rows

    def _learn_orthogonal(self, lesson: _Lesson) -> list[_Row]:
        """Returns rows of adapters that add up: the base of each stage has the earlier ones in it.

        Their sum is then served and trained on exactly, whatever serves an adapter (of a base in
        bfloat16: but for what merging rounds away).
        """
        name, stages = lesson.name, lesson.stages
        player = self._expert(stages[0])
        rows, earlier = [self._row_of(player, stages)], list[str]()
        for place, stage in enumerate(stages[1:], 1):
            earlier.append(player.target)
            base = self._folder / "merged" / f"{lesson.order}.{name}-{place}"
            if not base.exists():
                adapter = Path(player.target)
                with making_with_parents(base) as new:
                    merge(base_settings(adapter, None, None), adapter, new, is_trusted=True)
            settings = make_run_settings(
                self._sequence.of_stages({stage: 1.0}),
                base,
                f"{name}-{place}-{stage}",
                overrides=(*lesson.method.overrides, f"lora.orthogonal_to={json.dumps(earlier)}"),
                has_own_engine=True,
            )
            player = self._train(settings, f"{lesson.order}.{settings.experiment}")
            rows.append(self._row_of(player, stages))
        return rows

    def _learn_bank(self, lesson: _Lesson) -> list[_Row]:
        """Returns rows of the experts so far, each on its stage; the base answers the others.

        The whole bank is written too, to be evaluated and served at once.
        """
        stages = lesson.stages
        experts = [self._expert(stage) for stage in stages]
        self._write_bank(lesson.order, stages, experts)
        return [
            self._row(experts[: i + 1] + [self._base_player] * (len(stages) - i - 1), stages)
            for i in range(len(stages))
        ]

    def _write_bank(self, order: str, stages: Sequence[str], experts: Sequence[Contestant]) -> Path:
        """Returns the folder of all experts with what the router knows, written if need be."""
        folder = self._folder / "bank" / order
        if not folder.exists():
            paths = (Path(expert.target) for expert in experts)
            adapters = dict(zip(stages, paths, strict=True))
            counts = {stage: self._count_pairs(stage) for stage in stages}
            write_bank(folder, adapters, counts, self._settings_of(*stages))
        return folder

    def _learn_router(self, lesson: _Lesson) -> list[_Row]:
        """Returns rows of the experts so far, of which the router chooses one by the prompt.

        A task's answer is the chosen expert's own, which was played already. With vLLM the last row
        is played by the whole bank at once, each task in its adapter's slot.
        """
        stages = lesson.stages
        experts = {stage: self._expert(stage) for stage in stages}
        counts = {stage: self._count_pairs(stage) for stage in stages}
        rows = []
        for place in range(len(stages)):
            known = stages[: place + 1]
            router = PromptRouter({stage: counts[stage] for stage in known})
            successes, num_right, num_tasks = [], 0, 0
            for stage in stages:
                for each in known:
                    self._play(experts[each], stage)
                played = {n: read_episodes(self._folder, experts[n].name, stage) for n in known}
                shared = sorted(set.intersection(*map(set, played.values())))
                if not shared:
                    raise TrainingError(f"no held-out task of {stage} was played by all experts")
                tasks = played[known[0]]
                chosen = [router.find_stage(prompt_of(tasks[task])) for task in shared]
                wins = [
                    played[name][task].outcome is Outcome.SUCCESS
                    for task, name in zip(shared, chosen, strict=True)
                ]
                successes.append(fmean(wins))
                if stage in known:
                    num_right += chosen.count(stage)
                    num_tasks += len(chosen)
            self._router_accuracy = num_right / num_tasks
            rows.append(_Row(successes, [None] * len(stages)))
        if self._sequence.settings.env_runners.engine == "vllm":
            bank = str(self._write_bank(lesson.order, stages, list(experts.values())))
            player = Contestant(f"{lesson.order}.{lesson.name}", "bank", bank, bank)
            rows[-1] = self._row_of(player, stages)
        return rows

    def _learn_merged(self, lesson: _Lesson) -> list[_Row]:
        """Returns rows of one adapter that the experts so far are combined to."""
        stages = lesson.stages
        experts = [self._expert(stage) for stage in stages]
        rows = [self._row_of(experts[0], stages)]
        for place in range(1, len(stages)):
            label = f"{lesson.order}.{lesson.name}-{place}"
            folder = self._folder / "merged" / label
            if not folder.exists():
                folder.parent.mkdir(exist_ok=True)
                folders = [Path(expert.target) for expert in experts[: place + 1]]
                base = load_base(self._settings_of(stages[0]))
                combine_adapters(base, folders, lesson.method.combination, folder)
            self._merged_bytes = folder_bytes(folder)
            rows.append(self._row_of(Contestant(label, "adapter", str(folder)), stages))
        return rows

    def _learn_joint(self, lesson: _Lesson) -> list[_Row]:
        """Returns one row, of an adapter that was trained on all stages at once."""
        name, stages = lesson.name, lesson.stages
        kept = [stage for stage in self._sequence.stages if stage in stages]
        shared = self._sequence.of_stages(dict.fromkeys(kept, 1.0))
        num_iterations = len(stages) * shared.training.num_iterations
        settings = make_run_settings(
            shared, self._base, name, overrides=(f"training.num_iterations={num_iterations}",)
        )
        return [self._row_of(self._train(settings, name), stages)]

    @property
    def _base_player(self) -> Contestant:
        return Contestant("base", "base", str(self._base))

    def _expert(self, stage: str) -> Contestant:
        """Returns the adapter that was trained on a stage alone, which is trained if need be."""
        name = f"expert-{stage}"
        shared = self._sequence.of_stages({stage: 1.0})
        return self._train(make_run_settings(shared, self._base, name), name)

    def _train(self, settings: Settings, name: str) -> Contestant:
        run = train(settings, self._folder / "runs" / name, self._signals)
        self._runs.append(run)
        return Contestant(name, "adapter", str(run.adapter))

    def _row_of(self, player: Contestant, stages: Sequence[str]) -> _Row:
        return self._row([player] * len(stages), stages)

    def _row(self, players: Sequence[Contestant], stages: Sequence[str]) -> _Row:
        cells = zip(players, stages, strict=True)
        return _Row([self._play(*cell) for cell in cells], list(players))

    def _play(self, player: Contestant, stage: str) -> float:
        """Returns a player's success on a stage's held-out tasks, played if need be."""
        settings, examples = self._settings_of(stage), self._examples.get(player.name)
        with self._signals.immediately():
            summary = contest.evaluate(
                settings if examples is None else with_room(settings),
                [player],
                Methods(0 if examples is None else NUM_EXAMPLES),
                _evaluation_folder(self._folder, player.name, stage),
                examples,
                self._opener,
            )
        success: float = summary["policies"][player.name]["success_rate"]
        return success

    def _settings_of(self, *stages: str) -> Settings:
        """Returns the settings under which stages are evaluated, alone or mixed."""
        shared = self._sequence.of_stages(dict.fromkeys(stages, 1.0))
        own = make_run_settings(shared, self._base, "evaluation")
        played = {"evaluation": shared.evaluation, "env_runners": shared.env_runners}
        return own.model_copy(update=played)

    def _in_context(self, name: str, stage: str) -> Contestant:
        """Returns the base with its last successes on training tasks of a stage in its prompts."""
        player = Contestant(f"{name}-{stage}", "base", str(self._base))
        settings = self._settings_of(stage)
        evaluation = {"num_tasks": _NUM_EXAMPLE_TASKS, "env_kwargs": {}}
        own = settings.evaluation.model_copy(update=evaluation)
        seed = int(np.random.SeedSequence([settings.seed, _EXAMPLE_STREAM]).generate_state(1)[0])
        folder = self._folder / "examples" / stage
        with self._signals.immediately():
            settings = settings.model_copy(update={"evaluation": own, "seed": seed})
            contest.evaluate(settings, [self._base_player], Methods(), folder, opener=self._opener)
        self._examples[player.name] = read_folder(folder)
        return player

    def _count_pairs(self, stage: str) -> dict[str, int]:
        """Returns what the router knows of a stage, by prompts of its training tasks."""
        settings, prompts = self._sequence.of_stages({stage: 1.0}), []
        with closing(make_text_env(settings.environment.id, settings.environment.kwargs)) as env:
            for position in range(_NUM_ROUTER_PROMPTS):
                rng = np.random.default_rng([settings.seed, _ROUTER_STREAM, position])
                prompts.append(env.reset(options={"task": env.task_source.draw(rng)})[0])
        return count_pairs(prompts)


_RULES: Mapping[Kind, Callable[[Course, _Lesson], list[_Row]]] = {
    "base": Course._learn_base,
    "in_context": Course._learn_in_context,
    "experts": Course._learn_experts,
    "chain": Course._learn_chain,
    "orthogonal": Course._learn_orthogonal,
    "bank": Course._learn_bank,
    "router": Course._learn_router,
    "merged": Course._learn_merged,
    "joint": Course._learn_joint,
}


def read_episodes(folder: Path, player: str, stage: str) -> dict[tuple[int, int], EpisodeRecord]:
    """Returns a player's episodes on a stage's held-out tasks, by the task's place and the sample.

    Those whose environment failed are missing. `folder` is that of the courses of a seed.
    """
    records = read_folder(_evaluation_folder(folder, player, stage))
    return {(record.group_id, record.sample): record for record in records}


def _evaluation_folder(folder: Path, player: str, stage: str) -> Path:
    return folder / "evaluations" / player / stage


def read_folder(folder: Path) -> list[EpisodeRecord]:
    """Returns the episodes of an evaluation with one player, in the order of the tasks."""
    paths = (folder / "sessions").glob("*.jsonl")
    records = [to_record(row) for path in paths for row in read_rows(path)]
    return sorted(records, key=lambda record: record.group_id)


def prompt_of(record: EpisodeRecord) -> str:
    """Returns an episode's task as the policy read it."""
    return next(text for role, text in record.messages if role == "user")


def _say(name: str, result: MethodResult) -> None:
    numbers = {n: value for n, value in result.scores.items() if value is not None}
    told = ", ".join(f"{n} {100 * value:.1f}" for n, value in numbers.items())
    moved = ""
    if result.divergences is not None:
        old, new = compute_kl_old(result.divergences), compute_kl_new(result.divergences)
        moved = f"; KL {old:.3f} on old and {new:.3f} on new tasks"
    logger.info("%s: %s (in points)%s", name, told, moved)
