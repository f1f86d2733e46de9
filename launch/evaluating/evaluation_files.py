"""What an evaluation leaves: its settings, every episode, results; and how it resumes from them."""

import fcntl
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.evaluating.comparison import compare_all
from agentpeft.launch.evaluating.players import Contestant, Methods
from agentpeft.launch.reporting.run_data import METRICS_FILE, read_rows, to_record
from agentpeft.policies.checkpointing.checkpoints import CONFIG_FILE
from agentpeft.policies.checkpointing.run_logs import append_episodes
from agentpeft.policies.loop.evaluation import compute_success_metrics
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.model import CHAT_SETTINGS

_DECISIVE = {
    "environment": ("id", "kwargs"),
    "evaluation": ("samples_per_task", "env_kwargs"),
    "env_runners": ("agent", "max_new_tokens", "max_context_tokens", "temperature"),
    "model": ("dtype", *sorted(CHAT_SETTINGS)),
}
"""Which settings must be the same for episodes to be of one evaluation."""
EVALUATION_FILE = "evaluation.json"
_COUNT = re.compile(r"\d+_\w+")
_OVERALL = re.compile(r"num_episodes|success_rate.*|avg_t.*|pass_at/.*")


class EvaluationFiles:
    """A folder with `evaluation.json` (what was played), `sessions/` and `results.json`.

    The first episodes are also the first files, so an evaluation that is refused leaves none.
    """

    def __init__(self, folder: Path, settings: Settings, methods: Methods) -> None:
        """Touches nothing yet."""
        self._folder, self._settings = folder, settings
        self._num_tasks = settings.evaluation.num_tasks
        dump = settings.model_dump(mode="json")
        decisive = {
            f"{section}.{n}": dump[section][n]
            for section, names in _DECISIVE.items()
            for n in names
        }
        self._played = {"seed": settings.seed, **decisive, **asdict(methods)}
        self._records: dict[Contestant, list[EpisodeRecord]] = {}
        self._policies: dict[str, list[Any]] = {}
        """Those that have episodes here, by name."""
        self._lock: int | None = None
        """A descriptor of the folder, once it is there and no other evaluation may play into it."""

    def begin(self, contestants: Sequence[Contestant]) -> None:
        """Takes up the episodes that the folder holds; further contestants may be new.

        Raises: SettingsError where they are of other tasks, methods or policies, where nothing can
        be written, or another process writes.
        """
        self._check_writable()
        if self._folder.is_dir():
            self._take()
        path = self._folder / EVALUATION_FILE
        entries = {contestant.name: _to_entry(contestant) for contestant in contestants}
        played, policies = _read_entries(path) if path.is_file() else ({}, {})
        everyone = [Contestant(name, *entry) for name, entry in policies.items()]
        self._policies = {c.name: _to_entry(c) for c in everyone if self._has_episodes(c)}
        was = self._policies | _decisive(played, self._policies)
        now = self._policies | self._played | entries
        for name in was:
            if was[name] != now.get(name):
                raise SettingsError(
                    f"{self._folder} is of {name} = {was[name]!r}, this is of {now.get(name)!r}: "
                    "give another --output"
                )
        everyone = [Contestant(name, *entry) for name, entry in (self._policies | entries).items()]
        self._records = {contestant: self._read(contestant) for contestant in everyone}

    def _check_writable(self) -> None:
        """Raises: SettingsError, before hours are played that nothing could be kept of."""
        place = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise SettingsError(f"--output {self._folder}: cannot write into {place}")
        parts = (self._folder / name for name in ("checkpoints", METRICS_FILE))
        if (self._folder / CONFIG_FILE).is_file() and any(part.exists() for part in parts):
            raise SettingsError(f"--output {self._folder} is a run's folder: give another")

    def _take(self) -> None:
        """Keeps other processes out, as far as the file system can. Raises: SettingsError."""
        self._lock = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise SettingsError(
                f"another evaluation is writing into {self._folder}: wait, or give another --output"
            ) from None
        except OSError:
            pass

    def close(self) -> None:
        """Lets others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def limit(self, num_tasks: int) -> None:
        """Leaves out the positions from `num_tasks` on: no other tasks are there."""
        self._num_tasks = num_tasks
        for contestant, records in self._records.items():
            self._records[contestant] = [r for r in records if r.group_id < num_tasks]

    def missing(self, contestant: Contestant) -> list[int]:
        """Returns the positions of tasks that are yet to be played."""
        played = {record.group_id for record in self._records[contestant]}
        return [p for p in range(self._num_tasks) if p not in played]

    def records(self, contestant: Contestant) -> list[EpisodeRecord]:
        """Returns a contestant's episodes in the order of play."""
        return self._records[contestant]

    def append(self, contestant: Contestant, records: Sequence[EpisodeRecord]) -> None:
        """Keeps whole groups of episodes.

        Raises: SettingsError where another process came first.
        """
        if self._lock is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._take()
            if (self._folder / EVALUATION_FILE).exists():
                self.close()
                raise SettingsError(
                    f"another evaluation has written into {self._folder}: give another --output"
                )
        if contestant.name not in self._policies:
            self._policies[contestant.name] = _to_entry(contestant)
            (self._folder / "sessions").mkdir(parents=True, exist_ok=True)
            content = {"played": self._played, "policies": self._policies}
            _write_json(self._folder / EVALUATION_FILE, content)
        append_episodes(self._path(contestant), 0, records)
        self._records[contestant] += records

    def write_results(self) -> dict[str, Any]:
        """Rewrites `results.json`, and returns its summary.

        That is the overall figures of each policy, how they compare task by task, and how often
        merged ones did as unmerged.
        """
        policies, overall = {}, {}
        by_position: dict[str, list[EpisodeRecord]] = {}
        for contestant, played in self._records.items():
            records = sorted(played, key=lambda record: (record.group_id, record.sample))
            metrics = compute_success_metrics(records)
            policies[contestant.name] = {
                "kind": contestant.kind,
                "target": contestant.target,
                "metrics": metrics,
                "by_skill": _by(records, lambda record: record.skills),
                "by_difficulty": _by(records, lambda record: [difficulty_of(record.skills)]),
            }
            overall[contestant.name] = {n: v for n, v in metrics.items() if _OVERALL.fullmatch(n)}
            by_position[contestant.name] = records
        comparisons = compare_all(by_position)
        shared = {"agreement": self._agreement(), "comparisons": [*map(asdict, comparisons)]}
        _write_json(
            self._folder / "results.json",
            {"played": self._played, "policies": policies, **shared},
        )
        return {"policies": overall, **shared}

    def _agreement(self) -> dict[str, float]:
        """Returns by merged adapter the share of episodes that ended as the unmerged one's."""
        shares = {}
        for contestant, records in self._records.items():
            other = next((c for c in self._records if c.is_unmerged(contestant)), None)
            if records and other is not None:
                outcomes = {(r.group_id, r.sample): r.outcome for r in self._records[other]}
                agree = [outcomes.get((r.group_id, r.sample)) is r.outcome for r in records]
                shares[contestant.name] = fmean(agree)
        return shares

    def _path(self, contestant: Contestant) -> Path:
        return self._folder / "sessions" / f"{contestant.file_name}.jsonl"

    def _has_episodes(self, contestant: Contestant) -> bool:
        path = self._path(contestant)
        return path.is_file() and path.stat().st_size > 0

    def _read(self, contestant: Contestant) -> list[EpisodeRecord]:
        """Returns the tasks that are whole; what was cut off in the middle is played again."""
        path, evaluation = self._path(contestant), self._settings.evaluation
        if not self._has_episodes(contestant):
            return []
        groups: defaultdict[int, list[EpisodeRecord]] = defaultdict(list)
        for row in read_rows(path):
            record = to_record(row)
            groups[record.group_id].append(record)
        whole = [
            r
            for group in groups.values()
            if len(group) == evaluation.samples_per_task
            for r in group
        ]
        lines = [json.dumps({"iteration": 0, **asdict(record)}) + "\n" for record in whole]
        write_file(path, "".join(lines).encode())
        return [record for record in whole if record.group_id < evaluation.num_tasks]


def _read_entries(path: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Returns what was played, and by which policies. Raises: SettingsError on a foreign file."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        saved = None
    match saved:
        case {"played": dict(played), "policies": dict(policies)}:
            return played, policies
    raise SettingsError(f"{path} is of no evaluation: give another --output, or remove it")


def _decisive(played: dict[str, Any], policies: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns what must be the same for the policies that have played; endpoints have options."""
    has_endpoint = any(kind == "endpoint" for kind, *_ in policies.values())
    return {
        name: value
        for name, value in played.items()
        if policies and (has_endpoint or not name.startswith("endpoint_"))
    }


def _to_entry(contestant: Contestant) -> list[Any]:
    """Returns a contestant's fields after its name."""
    bank = [contestant.bank] if contestant.bank else []
    return [contestant.kind, contestant.target, *bank]


def difficulty_of(skills: Sequence[str]) -> str:
    """Returns the skill that counts something, else how many skills there are.

    >>> difficulty_of(["addition", "3_digits"]), difficulty_of(["insert", "where"])
    ('3_digits', '2_skills')
    """
    return next(filter(_COUNT.fullmatch, skills), f"{len(skills)}_skills")


def _by(
    records: Iterable[EpisodeRecord], keys: Callable[[EpisodeRecord], Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Returns number, success rate, its 95 % interval and pass@k of the episodes with each key."""
    by_key: defaultdict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in records:
        for key in keys(record):
            by_key[key].append(record)
    names = ("num_episodes", "success_rate", "pass_at/")
    return {
        key: {n: v for n, v in compute_success_metrics(group).items() if n.startswith(names)}
        for key, group in sorted(by_key.items())
    }


def _write_json(path: Path, content: object) -> None:
    write_file(path, json.dumps(content, indent=1, ensure_ascii=False).encode())
