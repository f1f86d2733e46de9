"""Plays attacks and innocent episodes, and says what did not hold.

For every attack: no exception leaves `step`; each observation is in its space, tells nothing of the
host or of another episode, and no path or name of the machinery; no step takes over a second
(`Try.cpu_slack_s`) of processor time more than its limit, which shells have on each core; the
outcome is not success; and afterwards an innocent episode of the same environment succeeds, with no
descriptor and no process more than before. An innocent episode that fails must fail again after the
same attacks: a command has a second, which a machine that does other work may take for itself.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attack import Attack
from footprint import Footprint, cpu_seconds, measure_footprint
from host import Host, can_watch_files

from agentpeft.envs import EnvFault, Outcome, TextEnv

MAX_WALL_S = 30.0
_REFUSALS = re.compile(r"^\d{4} \([0-9A-Z]{5}\)|\[exit status \d+\]|\[killed after|shell has ended")
_LEAKS = re.compile(
    r"Traceback \(most recent|site-packages|sqlglot|sqlite\w*|\bapsw\b|agentpeft_\w+|"
    r"/var/lib/mysql|envs/\w+/|MariaDB",
    re.IGNORECASE,
)


@dataclass
class Played:
    """An attack's observations, its outcome (None after a fault) and what did not hold."""

    observations: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    slowest_cpu_s: float = 0.0
    slowest_wall_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Player:
    """Plays on one environment, whose task source has the attacks' tasks and "innocent".

    `limit_s`: of a step, in processor time. `secret_words`: what no observation may show. `spare`:
    descriptors and processes that may be more after an attack, where a backend makes connections
    ahead of use. `find_leftovers`: says what of an ended episode is still on a server.
    `innocent_every`: after how many attacks an innocent episode is played, where one takes long.
    """

    def __init__(
        self,
        env: TextEnv[Any],
        host: Host,
        limit_s: float,
        *,
        secret_words: Sequence[str] = (),
        spare: tuple[int, int] = (0, 0),
        default_task: str | None = None,
        find_leftovers: Callable[[], list[str]] = list,
        innocent_every: int = 1,
    ) -> None:
        self.env = env
        self.host = host
        self.limit_s = limit_s
        self._secret_words = (host.word, *secret_words)
        self._spare = spare
        self._default_task = default_task
        self._find_leftovers = find_leftovers
        self._innocent_every = innocent_every
        self._last: list[Attack] = []
        """Those since the last innocent episode."""
        self._before: Footprint | None = None

    def play(self, attack: Attack) -> Played:
        """Plays an attack with all that holds for it, and an innocent episode after it."""
        if self._before is None:
            for _ in range(3):  # what is made ahead of use is there afterwards
                self.play_innocent()
            time.sleep(0.5)
            self._before = measure_footprint()
        played = self.play_attack(attack)
        self._last.append(attack)
        if len(self._last) == self._innocent_every:
            if self._harms_the_next():
                played.problems.append("the innocent episode after it does not succeed")
            self._last.clear()
        played.problems += self.host.find_problems()
        played.problems += self._find_growth() + self._find_leftovers()
        return played

    def play_attack(self, attack: Attack) -> Played:
        """Plays the attack alone."""
        played = Played()
        self.env.reset(options={"task": attack.expected.task or self._default_task})
        for message in attack.messages:
            action = self.host.fill_in(message)
            cpu_s, start_s = cpu_seconds(), time.monotonic()
            try:
                observation, _, is_over, _, info = self.env.step(action)
            except EnvFault as fault:
                played.problems.append(f"the agent made a fault of it: {fault!s:.200}")
                break
            except Exception as error:  # the suite's whole point is that there is none
                played.problems.append(f"step raised {type(error).__name__}: {error!s:.200}")
                break
            played.slowest_cpu_s = max(played.slowest_cpu_s, cpu_seconds() - cpu_s)
            played.slowest_wall_s = max(played.slowest_wall_s, time.monotonic() - start_s)
            self._look_at(observation, action, attack, played)
            if is_over:
                played.outcome = info["outcome"]
                break
            played.observations.append(observation)
            if not can_watch_files():
                played.problems.append("the host's user can have no inotify instance")
        self._judge(attack, played)
        return played

    def _harms_the_next(self) -> bool:
        """Whether innocent episodes fail after the last attacks, each time."""
        if self.play_innocent():
            return False
        for attack in self._last:
            self.play_attack(attack)
        return not self.play_innocent()

    def play_innocent(self) -> bool:
        """Plays an innocent episode with the oracle; returns whether it succeeds."""
        try:
            info = self.env.reset(options={"task": "innocent"})[1]
            for action in self.env.oracle_actions(self.env.task):
                info = self.env.step(action)[4]
        except EnvFault:
            return False
        return info["outcome"] is Outcome.SUCCESS

    def _look_at(self, observation: str, action: str, attack: Attack, played: Played) -> None:
        if not self.env.observation_space.contains(observation):
            played.problems.append(f"not in the space: {observation!r:.80}")
        try:
            observation.encode()
        except UnicodeEncodeError as error:
            played.problems.append(f"not UTF-8: {error}")
        for word in self._secret_words:
            if word in observation:
                played.problems.append(f"shows what is not its own: {observation!r:.200}")
        if "```bash" in action:
            leaks = [str(Path(__file__).parents[2])]
            played.problems += [f"shows {leak}" for leak in leaks if leak in observation]
            return
        for leak in _LEAKS.findall(observation):
            may_show = f"{action}\0{attack.expected.may_show}".lower()
            if leak.lower() not in may_show and leak[:10].lower() not in may_show:
                played.problems.append(f"shows {leak!r}: {observation!r:.200}")

    def _judge(self, attack: Attack, played: Played) -> None:
        expected = attack.expected
        if played.slowest_cpu_s > self.limit_s + expected.cpu_slack_s:
            played.problems.append(f"a step took {played.slowest_cpu_s:.1f} s of processor time")
        if played.slowest_wall_s > MAX_WALL_S:
            played.problems.append(f"a step took {played.slowest_wall_s:.1f} s")
        if played.outcome is Outcome.SUCCESS and not expected.may_succeed:
            played.problems.append("success")
        last = played.observations[-1] if played.observations else ""
        if expected.is_refused and not _REFUSALS.search(last):
            played.problems.append(f"not refused: {last!r:.200}")
        if expected.shows and not re.search(expected.shows, last):
            played.problems.append(f"does not show {expected.shows!r}: {last!r:.200}")

    def _find_growth(self) -> list[str]:
        assert self._before is not None
        before, num_tries = self._before, 20
        while True:  # what is on its way out may take a moment
            after = measure_footprint()
            more_descriptors = after.num_descriptors - before.num_descriptors
            more_processes = after.num_processes - before.num_processes
            if more_descriptors <= self._spare[0] and more_processes <= self._spare[1]:
                problems = []
                break
            num_tries -= 1
            if not num_tries:
                problems = [f"{more_descriptors} descriptors, {more_processes} processes more"]
                break
            time.sleep(0.1)
        if problems:
            self._before = after
        return problems
