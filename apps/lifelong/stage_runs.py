"""One training run of a study, in a folder of its own: begun, resumed, or done already."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentpeft.apps.lifelong.study_engine import SHARED
from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.checking.preparation import prepare_tiny
from agentpeft.launch.evaluating.evaluation_files import EVALUATION_FILE
from agentpeft.launch.reporting.run_data import read_run
from agentpeft.launch.run.run_folder import Start, fill_run_dir, lock_run, log_to, read_resumed
from agentpeft.launch.run.run_loop import run_session
from agentpeft.launch.run.stop_signals import StopSignals
from agentpeft.policies.checkpointing.checkpoints import (
    CONFIG_FILE,
    MANIFEST_FILE,
    checkpoint_path,
    list_checkpoints,
)
from agentpeft.policies.checkpointing.reading import read_config
from agentpeft.policies.models.load import load_base
from agentpeft.policies.settings.config import OutputSettings, Settings
from agentpeft.policies.settings.named_files import hash_named, rename_files
from agentpeft.policies.settings.toml import with_overrides

logger = logging.getLogger(__name__)
_DONE, _PLAN, _FILES = "done.json", "plan.json", "files"
_IN_STUDY = {
    "shared_engines": SHARED,
    "num_env_runners": 0,
    "num_gpus_per_env_runner": 0.0,
    "kv_cache_gib": None,
    "serving": "auto",
    "sleep_while_learning": False,
}
"""What a run leaves to the engine of its study."""


@dataclass(frozen=True)
class StageRun:
    """What a run that is done has left: its adapter's folder, and what it cost.

    `num_tokens` were learnt from (sampled ones with RL, the oracle's with imitation); `num_bytes`
    are the adapter's.
    """

    adapter: Path
    num_tokens: int
    seconds: float
    num_bytes: int


def make_run_settings(
    shared: Settings,
    base: Path | str,
    name: str,
    *,
    adapter: Path | None = None,
    overrides: tuple[str, ...] = (),
    has_own_engine: bool = False,
) -> Settings:
    """Returns the settings of a run on `base`, from a given adapter or a new one.

    Nothing is evaluated in the run; that is done afterwards, for all stages. With vLLM it plays and
    learns in this process, and by the study's engine unless it `has_own_engine`, as where its base
    is another one. Raises: SettingsError.
    """
    values = shared.model_dump()
    values |= {"experiment": name, "tiny": {}, "warm_start": {}}
    values["model"] |= {"name": str(base), "adapter": None if adapter is None else str(adapter)}
    values["evaluation"] |= {"num_tasks": 0, "interval": 0}
    if shared.is_rl:
        values["training"]["chats"] = None  # the warm start's, which made the base
    if shared.env_runners.engine == "vllm" and not has_own_engine:
        values |= {"max_adapter_lag": 0, "in_flight_updates": False}
        values["env_runners"] |= _IN_STUDY
    values["output"] |= {"dir": OutputSettings().dir, "loggers": []}
    return Settings(**with_overrides(values, overrides))


def make_base(settings: Settings, signals: StopSignals) -> str:
    """Returns the folder, or the name, of a study's base; the tiny model is made."""
    with signals.immediately():
        prepare_tiny(settings)
        return load_base(settings).name if settings.is_tiny else settings.model.name


def train(settings: Settings, run_dir: Path, signals: StopSignals) -> StageRun:
    """Trains in `run_dir`, from its newest checkpoint if it was interrupted.

    Raises: SettingsError where the folder holds a run of other settings; Stopped.
    """
    done = run_dir / _DONE
    if is_done(run_dir):
        _check_same(read_config(run_dir), settings, run_dir)
        return _read(done, run_dir)
    start = _start(settings, run_dir)
    if start.checkpoint is None:
        logger.info("%s: begins", run_dir.name)
    with lock_run(run_dir), log_to(run_dir), Path(os.devnull).open("w", encoding="utf-8") as sink:
        run_session(start, run_dir, None, signals, sink)
    data = read_run(run_dir)
    checkpoint = checkpoint_path(run_dir / "checkpoints", settings.training.num_iterations)
    adapter = checkpoint / "adapter"
    run = StageRun(
        adapter=adapter,
        num_tokens=int(data.total("train/num_tokens")),
        seconds=round(data.total("time/total_s"), 3),
        num_bytes=folder_bytes(adapter),
    )
    row = {**asdict(run), "adapter": str(adapter.relative_to(run_dir))}
    write_file(done, json.dumps(row).encode())
    logger.info("%s: %d tokens, %.0f s", run_dir.name, run.num_tokens, run.seconds)
    return run


def check_plan(plan: Mapping[str, Any], settings: Settings, folder: Path) -> None:
    """Writes what a study's folder is of, with hashes of the files that its settings name.

    A plan of which no run has saved anything, as one that was refused, binds nobody, but for its
    files once one of them has played. Raises: SettingsError where the folder is of something else.
    """
    content = json.loads(json.dumps({**plan, _FILES: _hash_files(settings) or None}))
    bound = content
    if next(folder.rglob(MANIFEST_FILE), None) is None:
        has_played = next(folder.rglob(EVALUATION_FILE), None) is not None
        bound = {_FILES: content[_FILES]} if has_played else {}
    path = folder / _PLAN
    if path.is_file() and bound:
        try:
            saved = dict(json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError):
            raise SettingsError(f"{path} is damaged: give another --output") from None
        for name, value in bound.items():
            if saved.get(name) != value:
                change = _say_change(name, saved.get(name), value)
                raise SettingsError(
                    f"{folder} is of another study: {change}: give another --output"
                )
    write_file(path, json.dumps(content, indent=1).encode())


def _hash_files(settings: Settings) -> dict[str, str]:
    """Returns the hashes of the models, adapters and task files here that settings name."""
    hashes: dict[str, str] = {}

    def note(name: str) -> str:
        if (found := hash_named(name)) is not None:
            hashes[name] = found
        return name

    rename_files(settings, note)
    return hashes


def _say_change(name: str, saved: object, value: object) -> str:
    """Returns which setting is another one, and its two values."""
    while isinstance(saved, dict) and isinstance(value, dict):
        changed = (key for key in {**saved, **value} if saved.get(key) != value.get(key))
        if (key := next(changed, None)) is None:
            break
        name, saved, value = f"{name}.{key}", saved.get(key), value.get(key)
    return f"its {name} is {saved!r:.100}, now {value!r:.100}"


def make_folder(folder: Path) -> None:
    """Makes a study's folder. Raises: SettingsError where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--output {folder}: {error.strerror}") from None


def is_done(run_dir: Path) -> bool:
    """Returns whether `train` has nothing left to do in a folder."""
    return (run_dir / _DONE).is_file()


def folder_bytes(folder: Path) -> int:
    """Returns the bytes of an adapter's files."""
    return sum(file.stat().st_size for file in folder.iterdir())


def _start(settings: Settings, run_dir: Path) -> Start:
    """Returns how the run starts or resumes; one that was killed before it saved restarts."""
    if (run_dir / CONFIG_FILE).is_file() and list_checkpoints(run_dir / "checkpoints"):
        start = read_resumed(run_dir, [])
        _check_same(start.settings, settings, run_dir)
        return start
    try:
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        fill_run_dir(run_dir, settings)
    except OSError as error:
        raise SettingsError(f"cannot write into {run_dir}: {error.strerror}") from None
    return Start(settings, run_dir)


def _check_same(saved: Settings, settings: Settings, run_dir: Path) -> None:
    if saved != settings:
        raise SettingsError(f"{run_dir} is a run of other settings: give another --output")


def _read(done: Path, run_dir: Path) -> StageRun:
    try:
        row = json.loads(done.read_text(encoding="utf-8"))
        return StageRun(**{**row, "adapter": run_dir / row["adapter"]})
    except (KeyError, TypeError, ValueError):
        raise SettingsError(f"{done} is damaged: remove {run_dir} to run it again") from None
