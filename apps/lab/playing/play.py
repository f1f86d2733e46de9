"""Plays an environment by hand, and shows the oracle's and a policy's episode beside yours.

```sh
agentpeft play AgentPEFT/DBBench-v0 prompt=compact
agentpeft play quickstart environment.kwargs.autocommit=true
agentpeft play AgentPEFT/Arithmetic-v0 num_digits=2 --seed 7
agentpeft play RUN --model RUN
```

The first word is an environment's id, whose arguments follow as KEY=VALUE, or a preset, a TOML
file or a run's folder, whose evaluation tasks are played and whose settings follow as
section.name=value. An action ends at Enter: a statement, a command, or text as the environment
wants it; a line that ends with a backslash continues in the next. `?` is help and costs no turn,
Ctrl-D leaves. Actions may be piped in. A policy is greedy.

Exit status: 0 played, or left; 1 a failure; 2 wrong input; 130 interrupted.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Argument, Option

from agentpeft.apps.lab.playing.episode_view import open_console
from agentpeft.envs import SettingsError
from agentpeft.envs.registration import find_spec, is_env_id
from agentpeft.launch.run.command_line import CommandLine, read_env_kwargs
from agentpeft.policies.rollout.scripted_play import opened
from agentpeft.policies.settings.config import EnvironmentSettings, Settings
from agentpeft.policies.settings.environment_kwargs import without_training_rewards

main = CommandLine()


@main.add(help=__doc__)
def play(
    words: Annotated[
        list[str],
        Argument(
            metavar="ENV|PRESET|RUN [KEY=VALUE]...",
            help="What to play, then its arguments or settings.",
        ),
    ],
    *,
    task: Annotated[str | None, Option(metavar="ID", help="A task's id; else drawn.")] = None,
    seed: Annotated[int | None, Option(help="What it is drawn with; else at random.")] = None,
    model: Annotated[
        Path | None,
        Option(metavar="RUN|ADAPTER", help="A policy to play the same task: a run or an adapter."),
    ] = None,
) -> int:
    """Plays one episode. Raises: SettingsError, DataError, UnknownTaskError, EnvFault."""
    if seed is not None and seed < 0:
        raise SettingsError(f"--seed must be >= 0, got {seed}")
    environment, settings = read_game(words)
    from agentpeft.apps.lab.playing import beside

    console = open_console()
    with ExitStack() as stack:
        policy = None
        if model is not None:
            from agentpeft.apps.lab.playing.seated_policy import open_policy

            policy = stack.enter_context(open_policy(settings, model))
        env = stack.enter_context(opened(environment.id, environment.kwargs))
        drawn = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        beside.play(console, env, task, drawn, policy)
    return 0


def read_game(words: Sequence[str]) -> tuple[EnvironmentSettings, Settings]:
    """Returns the environment that the command's words ask for, and the settings they belong to.

    Of a preset or a run it is the one of evaluation. Raises: SettingsError.
    """
    first, *rest = words
    if is_env_id(first):  # which needs none of the packages for training
        find_spec(first)
        return EnvironmentSettings(id=first, kwargs=read_env_kwargs(first, rest)), Settings()
    from agentpeft.launch.data.task_files import with_task_files
    from agentpeft.launch.run.run_folder import find_run, read_start
    from agentpeft.policies.checkpointing.checkpoints import CONFIG_FILE

    run_dir = find_run(Path(first))
    config = first if run_dir is None else str(run_dir / CONFIG_FILE)
    settings = with_task_files(read_start([config], rest).settings)
    kwargs = without_training_rewards(settings.held_out_kwargs)
    return EnvironmentSettings(id=settings.environment.id, kwargs=kwargs), settings
