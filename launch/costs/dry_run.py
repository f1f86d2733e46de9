"""What a run would be, without running it: its settings, its memory, and on request its time."""

import sys

from agentpeft.envs import SettingsError
from agentpeft.launch.costs.resources import describe_memory
from agentpeft.policies.settings.config import Settings


def show_dry_run(settings: Settings, measure: bool) -> None:
    """Prints the settings as TOML, with the memory they need in its comments.

    With `measure` also the time, for which task files, and the built-in model, are made where they
    are missing. Raises: SettingsError, and what `measure_run_time` raises.
    """
    if measure and settings.env_runners.shared_engines is not None:
        raise SettingsError("--measure: how fast engines are that others use too is not known")
    print(settings.to_toml())
    for line in describe_memory(settings):
        print(f"# {line}")
    if measure:
        sys.stdout.flush()
        for line in _describe_time(settings):
            print(f"# {line}")


def _describe_time(settings: Settings) -> list[str]:
    from agentpeft.launch.costs.run_time import measure_run_time
    from agentpeft.launch.data.task_files import with_task_files

    return measure_run_time(with_task_files(settings)).describe()
