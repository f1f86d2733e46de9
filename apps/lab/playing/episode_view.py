"""Episodes as a terminal shows them: one after the other, or several side by side."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentpeft.apps.lab.run_view import clean, say_text
from agentpeft.envs import Outcome
from agentpeft.policies.messages import EpisodeRecord, Trajectory
from agentpeft.policies.rollout.play import StepResult

_WRAPPED = re.compile(r"(?:Action: Operation|Act: bash)\n```\w*\n(.*?)\n?```\s*", re.S)


@dataclass(frozen=True)
class ShownTurn:
    """What a player said, and what the environment answered; None where that is not known."""

    said: str
    observation: str | None
    reward: float | None

    def unwrap(self) -> "ShownTurn":
        """Returns the turn with a statement or a command alone, without what it is written in."""
        match = _WRAPPED.fullmatch(self.said)
        return self if match is None else replace(self, said=match[1])


@dataclass(frozen=True)
class ShownEpisode:
    """An episode under its player's name."""

    player: str
    turns: tuple[ShownTurn, ...]
    outcome: str
    episode_return: float

    @classmethod
    def of_results(
        cls,
        player: str,
        actions: Sequence[str],
        results: Sequence[StepResult],
        outcome: Outcome | None = None,
    ) -> Self:
        """Returns an episode that was played by actions.

        `outcome` None: what its last step says, ongoing if that has not ended it.
        """
        turns = tuple(
            ShownTurn(action, result.observation, result.reward)
            for action, result in zip(actions, results, strict=False)
        )
        is_over = bool(results) and results[-1].is_last
        end = outcome or (results[-1].outcome if is_over else Outcome.ONGOING)
        return cls(player, turns, end.value, float(sum(result.reward for result in results)))

    @classmethod
    def of_record(
        cls, player: str, record: EpisodeRecord, played: Trajectory | None = None
    ) -> Self:
        """Returns an episode that a policy played; `played` has the rewards of its turns."""
        rewards = () if played is None else played.turn_rewards
        turns = _to_turns(record.messages, rewards)
        return cls(player, turns, record.outcome.value, record.episode_return)

    @classmethod
    def of_messages(
        cls, player: str, messages: Sequence[tuple[str, str]], played: Trajectory
    ) -> Self:
        """Returns an episode that a policy has just played, from its messages and its tokens."""
        turns = _to_turns(messages, played.turn_rewards)
        return cls(player, turns, played.outcome.value, played.episode_return)

    @property
    def end(self) -> Text:
        """How it ended, in a line."""
        style = "green" if self.outcome == Outcome.SUCCESS else "yellow"
        end = "left" if self.outcome == Outcome.ONGOING else self.outcome
        plural = "s" * (len(self.turns) != 1)
        rest = f" in {len(self.turns)} turn{plural}, return {self.episode_return:.3g}"
        return Text.assemble((end, style), rest)


def _to_turns(
    messages: Sequence[tuple[str, str]], rewards: Sequence[float]
) -> tuple[ShownTurn, ...]:
    said = [text for role, text in messages if role == "assistant"]
    answers = [text for role, text in messages if role == "user"][1:]
    return tuple(ShownTurn(*each) for each in zip_longest(said, answers, rewards))


def open_console() -> Console:
    """Returns standard output; where it is no terminal, lines are as long as they are."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True)


def show_text(text: str, mark: str = "", style: str = "") -> Text:
    """Returns what was said, behind a mark; nothing of it reaches the terminal as a command."""
    lines = "\n".join(clean(line) for line in text.expandtabs().split("\n"))
    return Text.assemble((mark, "bold"), (lines, style))


def show_turn(turn: ShownTurn) -> Iterator[RenderableType]:
    """Yields a turn's action, and what it led to."""
    yield show_text(say_text(turn.said), "» ", "cyan" if turn.said.strip() else "dim")
    if turn.observation is not None:
        yield show_answer(turn.observation, turn.reward)


def show_answer(observation: str, reward: float | None) -> Text:
    """Returns what the environment said, and its reward unless that is 0 or unknown."""
    text = observation.rstrip("\n")
    earned = f"{'  ' * bool(text)}[{reward:+.3g}]" if reward else ""
    return Text.assemble(show_text(text, "« "), (earned, "magenta"))


def show_one(episode: ShownEpisode) -> RenderableType:
    """Returns an episode as lines, below its player's name if it has one."""
    head = [Text(f"{clean(episode.player)}:", "bold")] if episode.player else []
    turns = [line for turn in episode.turns for line in show_turn(turn)]
    return Group(*head, *turns, episode.end)


def show_beside(episodes: Sequence[ShownEpisode], console: Console) -> RenderableType:
    """Returns episodes in columns, turn by turn; where no terminal is, one after the other."""
    if not console.is_terminal:
        return Group(*(show_one(episode) for episode in episodes))
    table = Table(expand=True, show_lines=True, show_footer=True)
    for episode in episodes:
        table.add_column(clean(episode.player), episode.end, ratio=1, overflow="fold")
    for row in zip_longest(*(episode.turns for episode in episodes)):
        table.add_row(*(Group(*show_turn(turn.unwrap())) if turn else "" for turn in row))
    return table
