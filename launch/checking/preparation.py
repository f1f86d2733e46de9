"""What comes before a run: a look at all that it needs, and making the built-in model."""

import logging
import time
from contextlib import suppress
from pathlib import Path

from agentpeft.envs import SettingsError
from agentpeft.launch.checking.machine_checks import (
    Machine,
    check_environment,
    find_faults,
    try_chat,
    try_environments,
)
from agentpeft.launch.data.task_files import with_task_files
from agentpeft.launch.run.run_folder import output_base
from agentpeft.policies.delivery.adapter_files import read_base_name
from agentpeft.policies.rollout.chat_rows import read_chats
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)


def prepare(settings: Settings, address: str | None, *, is_new: bool) -> Settings:
    """Returns the settings with absolute paths, once a look finds nothing in the way of a run.

    `address`: the Ray cluster to join. `is_new`: the run is not resumed, so that its files of chats
    are read too. Raises: SettingsError, DataError.
    """
    _look(settings, address)
    settings = with_task_files(settings)
    try_environments(settings)
    if settings.training.chats is not None and is_new:
        read_chats(settings.training.chats)
    return settings


def look_ahead(settings: Settings, address: str | None, *, is_new: bool) -> None:
    """Looks for whatever would end a run within its first minute.

    Raises: as `prepare`.
    """
    prepare(settings, address, is_new=is_new)
    find_faults(Machine(settings), (check_environment,))
    try_chat(settings)


def _look(settings: Settings, address: str | None) -> None:
    if settings.callbacks is not None:
        from agentpeft.policies.loop.callbacks import find_class

        find_class(settings.callbacks)
    if settings.env_runners.agent:
        from agentpeft.policies.engines.outside_agent import make_agent

        make_agent(settings, None)
    if address is not None and settings.env_runners.num_env_runners == 0:
        raise SettingsError(
            f"--address {address}: env_runners.num_env_runners is 0, so nothing runs in a cluster"
        )
    output = output_base(Path(settings.output.dir), is_told=False)
    find_faults(Machine(settings, output=output, address=address))


def prepare_tiny(settings: Settings, checkpoint: Path | None = None) -> None:
    """Makes the built-in model in the cache, where the actors then find it; says how it goes.

    A run that is resumed from a checkpoint keeps its own, while that is there.
    """
    if settings.model.name != "tiny":
        return
    from agentpeft.policies.models.tiny_cache import keep_base, load_tiny

    if checkpoint is not None:
        with suppress(OSError, ValueError):  # it is of a run on all weights
            keep_base(settings, read_base_name(checkpoint / "adapter"))
    start_s = time.monotonic()
    line = ""

    def say(step: int, loss: float, success: float) -> None:
        nonlocal line
        seconds = time.monotonic() - start_s
        line = f"step {step}, loss {loss:.3f}, success {success:.0%}, {seconds:.0f} s"
        if step % 50 == 0:
            logger.info("warm start: %s", line)

    base = load_tiny(settings, say)
    if line:
        logger.info("warm start: done at %s", line)
    elif settings.warm_start.num_steps:
        logger.info("warm start: found in the cache, %s", base.name)
