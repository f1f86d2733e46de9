"""What `agentpeft replay` does with an episode, and shows: its own course, or another from a turn.

Each function returns the command's exit status: 1 where something is not as it was recorded.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from agentpeft.apps.lab.playing import replaying
from agentpeft.apps.lab.playing.episode_view import (
    ShownEpisode,
    show_beside,
    show_one,
    show_text,
)
from agentpeft.apps.lab.playing.recorded import RecordedEpisode
from agentpeft.apps.lab.playing.typed_agent import TypedAgent
from agentpeft.apps.lab.run_view import clean, say_text
from agentpeft.envs import Outcome, SettingsError, TextEnv
from agentpeft.policies.checkpointing.checkpoints import read_best
from agentpeft.policies.checkpointing.reading import latest_checkpoint, read_checkpoint, read_state
from agentpeft.policies.rollout.play import play_episode
from agentpeft.policies.rollout.scripted_play import (
    ScriptedAgent,
    oracle_actions,
    run_without_waiting,
)


def describe(found: RecordedEpisode) -> RenderableType:
    """Returns which episode it is, and its prompt."""
    record = found.record
    what = f"{found.name}  task {clean(record.task_id)}  adapter {record.adapter_version}"
    return Group(Rule(Text(what)), show_text(found.prompt))


def replay(console: Console, found: RecordedEpisode, *, by_actions: bool) -> int:
    """Plays an episode as it was: sampled again where its adapter is kept, else by its actions."""
    version = found.record.adapter_version
    if by_actions or not found.has_adapter:
        now = replaying.play_actions_again(found)
        shown = ShownEpisode.of_results("", now.actions, now.results, now.outcome)
        why = "as asked" if by_actions else f"for no checkpoint of adapter {version} is kept"
        done = f"the recorded actions were played against the environment again, {why}"
        same = "prompt, all observations, return and outcome"
        problem = replaying.find_other_answer(found, now)
    else:
        played = replaying.play_again(found)
        shown = ShownEpisode.of_record("", played.record, played.trajectory)
        source = "what training began with" if found.checkpoint is None else found.checkpoint.name
        done = f"sampled again with adapter {version} ({source})"
        num_tokens = played.record.num_tokens
        tokens = f"the number of tokens ({num_tokens})" if found.tokens is None else "all tokens"
        if (change := replaying.find_logprob_change(found, played)) is not None:
            tokens += f" (log-probabilities to {change:.1g})"
        same = f"{tokens}, all texts, return and outcome"
        problem = replaying.find_difference(found, played)
    console.print(show_one(shown))
    return _judge(console, done, same, problem)


def find_turn(found: RecordedEpisode) -> int:
    """Returns the turn. Raises: SettingsError where the episode has none of that number."""
    turn, num_turns = found.name.turn or 0, max(len(found.said), 1)
    if not 1 <= turn <= num_turns:
        raise SettingsError(f"{found.name} has turns 1 to {num_turns}, got :{turn}")
    return turn


def find_policy(run: Path, name: str) -> tuple[int, Path]:
    """Returns the number and the folder of a checkpoint: newest, best, or a path.

    Raises: SettingsError, CheckpointError.
    """
    folder = run / "checkpoints"
    best = read_best(folder) if name == "best" else None
    if name == "newest":
        checkpoint = latest_checkpoint(folder)
    elif name != "best":
        checkpoint = Path(name).resolve()
    elif best is not None:
        checkpoint = folder / best.checkpoint
    else:
        raise SettingsError(f"--checkpoint best: no evaluation of {run} has named one")
    return int(read_state(read_checkpoint(checkpoint))["iteration"]), checkpoint


def resample(
    console: Console, found: RecordedEpisode, num_samples: int, seed: int, policy: tuple[int, Path]
) -> int:
    """Shows what a policy does from the turn on, an episode a line, and how many succeed."""
    turn = find_turn(found)
    samples = replaying.resample(found, turn, num_samples, seed, policy)
    records = [found.record, *(sample.record for sample in samples)]
    names = ["recorded", *(f"sample {record.sample + 1}" for record in records[1:])]
    for name, record in zip(names, records, strict=True):
        shown = ShownEpisode.of_record("", record)
        told = (
            f" » {say_text(each.said)} « {say_text(each.observation or '')}"
            for each in shown.turns[turn - 1 :]
        )
        rest = clean(" ".join(" ".join(told).split()))
        line = Text.assemble((f"{name:<10} ", "bold"), shown.end, f"  {rest}")
        console.print(line, no_wrap=True, overflow="ellipsis")
    num_solved = sum(record.outcome is Outcome.SUCCESS for record in records[1:])
    texts = [text for role, text in records[-1].messages if role == "user"][:turn]
    done = (
        f"{num_solved} of {len(samples)} succeed: sampled from turn {turn} on by adapter "
        f"{policy[0]} ({policy[1].name}), seed {seed}"
    )
    return _judge_start(console, found, done, texts)


def branch(console: Console, found: RecordedEpisode, *, by_oracle: bool) -> int:
    """Plays another course from the turn on, and shows it beside the recorded one."""
    turn = find_turn(found)
    turns = replaying.read_turns(found)[: turn - 1]
    given = replaying.texts_of(turns)
    with replaying.began(found) as (env, prompt, task):
        if by_oracle:
            actions = [*given, *oracle_actions(env, task)]
            agent = ScriptedAgent(actions)
        else:
            max_turns = env.config.max_turns if isinstance(env, TextEnv) else None
            agent = typed = TypedAgent(console, task, given, max_turns)
            actions = typed.actions
        outcome = run_without_waiting(play_episode(env, agent))
    name = f"{'the oracle' if by_oracle else 'you'} from turn {turn}"
    other = ShownEpisode.of_results(name, actions, agent.results)
    own = ShownEpisode.of_record("recorded", found.record)
    console.print(show_beside([own, other], console))
    texts = [prompt, *replaying.read_answers(turns, agent.results)]
    end = "left" if outcome is None else other.outcome
    return _judge_start(console, found, f"{name}: {end}", texts)


def _judge_start(console: Console, found: RecordedEpisode, done: str, texts: Sequence[str]) -> int:
    """Says whether the prompt and the observations before the turn are as they were."""
    turns = f" and the observations before turn {len(texts)}" if len(texts) > 1 else ""
    return _judge(console, done, f"the prompt{turns}", replaying.find_other_text(found, texts))


def _judge(console: Console, done: str, same: str, problem: str | None) -> int:
    """Prints the last line: what was done, and whether it came out the same."""
    text = f"differs from the record: {problem}" if problem else f"equal to the record: {same}"
    style = "red" if problem else "green"
    console.print(Text.assemble(f"{done}; ", (clean(text), style)))
    return 1 if problem else 0
