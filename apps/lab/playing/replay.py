"""Plays a recorded episode of a run again, or another way from some turn on.

```sh
agentpeft replay RUN
agentpeft replay RUN --failed --skill update
agentpeft replay RUN train-12-3
agentpeft replay RUN eval-5@0
agentpeft replay RUN train-12-3:2 --oracle
agentpeft replay RUN train-12-3:2 --resample 8
```

Without an episode the last ones are listed, or the last of those that --failed and --skill keep.
An episode is sampled again with the adapter that
played it, and compared with the record: tokens, texts, rewards and outcome. Where that adapter's
checkpoint is not kept (or with --actions) the recorded actions are played against the environment,
and its answers, rewards and outcome are compared. The last line says which of the two was done.

With :TURN the turns before it are played as they were, then another course begins: yours, typed
line by line, the oracle's (--oracle), or what the policy samples with another seed (--resample).

Exit status: 0 done, and equal; 1 something differs, or a failure; 2 wrong input; 130 interrupted.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from agentpeft.apps.lab.playing import recorded
from agentpeft.apps.lab.playing.episode_view import open_console
from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import check_count
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.run_folder import say_no_run
from agentpeft.policies.checkpointing.checkpoints import CONFIG_FILE

_NUM_LISTED = 12
_SEED = 1
main = CommandLine()


@main.add(help=__doc__)
def replay(  # noqa: PLR0913 (options, by keyword only)
    run: Annotated[Path, Argument(help="A run's folder.")],
    episode: Annotated[
        str | None,
        Argument(
            metavar="EPISODE[:TURN]",
            help="train-GROUP-SAMPLE or eval-GROUP-SAMPLE@ITERATION; none lists the last ones.",
        ),
    ] = None,
    *,
    failed: Annotated[bool, Option("--failed", help="List episodes that did not succeed.")] = False,
    skill: Annotated[
        str | None, Option(metavar="NAME", help="List episodes of tasks with this skill.")
    ] = None,
    actions: Annotated[
        bool, Option("--actions", help="Play the recorded actions; no model is loaded.")
    ] = False,
    oracle: Annotated[
        bool, Option("--oracle", help="From TURN on, all of a perfect agent's actions.")
    ] = False,
    resample: Annotated[
        int | None, Option(metavar="N", help="From TURN on, N samples of the policy.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        Option(metavar="newest|best|PATH", help="Whose policy --resample asks; newest without."),
    ] = None,
    seed: Annotated[
        int | None, Option(help=f"Another one gives --resample other samples; {_SEED} without.")
    ] = None,
) -> int:
    """Plays it again. Raises: DataError, SettingsError, CheckpointError, EngineError, EnvFault."""
    courses_asked = {"--actions": actions, "--oracle": oracle, "--resample": resample is not None}
    if episode is not None and (failed or skill is not None):
        raise SettingsError(f"--failed and --skill choose what is listed: leave out {episode}")
    _check(episode, [option for option, is_asked in courses_asked.items() if is_asked])
    _check_sampling(resample, {"--checkpoint": checkpoint, "--seed": seed})
    if not (run / CONFIG_FILE).is_file():
        raise SettingsError(say_no_run(run))
    console = open_console()
    if episode is None:
        console.print(recorded.list_episodes(run, _NUM_LISTED, failed, skill))
        return 0
    from agentpeft.apps.lab.playing import courses

    found = recorded.read_episode(run, recorded.EpisodeName.parse(episode))
    if found.name.turn is not None:
        courses.find_turn(found)
    console.print(courses.describe(found))
    if found.name.turn is None:
        return courses.replay(console, found, by_actions=actions)
    if resample is not None:
        version = courses.find_policy(run, checkpoint or "newest")
        return courses.resample(console, found, resample, _SEED if seed is None else seed, version)
    return courses.branch(console, found, by_oracle=oracle)


def _check(episode: str | None, asked: list[str]) -> None:
    """Raises: SettingsError where what is asked of the episode does not go together."""
    if len(asked) > 1:
        raise SettingsError(f"{' and '.join(asked)}: give one of them at a time")
    if asked and (episode is None or (":" in episode) == (asked == ["--actions"])):
        needs = "EPISODE without :TURN" if asked == ["--actions"] else "EPISODE:TURN"
        raise SettingsError(f"{asked[0]} needs {needs}, got {episode or 'no episode'}")


def _check_sampling(num_samples: int | None, options: Mapping[str, str | int | None]) -> None:
    """Raises: SettingsError on a number that is none, or options without effect."""
    if num_samples is not None:
        check_count("--resample", num_samples)
    for option, value in options.items():
        if value is not None and num_samples is None:
            raise SettingsError(f"{option} {value} is for --resample N, which was not given")
        if isinstance(value, int) and value < 0:
            raise SettingsError(f"{option} must be >= 0, got {value}")
