"""Does any action break an environment, or take longer than it may?

    python benchmarks/env_fuzz.py --env db_bench --backend sqlite --num-actions 200000
    python benchmarks/env_fuzz.py --env os --backend bubblewrap --num-actions 10000
    python benchmarks/env_fuzz.py --env arithmetic --num-actions 200000

Plays random text, pieces of the language in random order, mutations of the oracle's actions, and
splices and mutations of the attacks' (`tests/attacks/`, without those of time, which take it all).
No step may raise, leave the observation space or take over a second of processor time more than its
limit. Prints one JSON line: counts by kind of action, outcomes, the slowest step. For each of the
first 20 violations a line on standard error has the seed, the position and the action; the exit
status is then 1. `mysql` needs AGENTPEFT_MYSQL_URL. On two cores 200,000 actions take a minute on
Arithmetic and GSM8K and ten on SQLite, 20,000 on MariaDB five, 10,000 in a sandbox ten.
"""

import argparse
import collections
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from agentpeft.envs import EnvFault, TextEnv
from agentpeft.envs.arithmetic.env import ArithmeticEnv
from agentpeft.envs.db_bench.actions import operation_action
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.gsm8k.env import GSM8KEnv
from agentpeft.envs.os_interaction.actions import command_action
from agentpeft.envs.os_interaction.env import OSInteractionEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "attacks"))
from footprint import cpu_seconds
from games import COMMAND_TIMEOUT_S, SMALL, STATEMENT_TIMEOUT_S
from table import ATTACKS

CPU_SLACK_S = 1.0
_MAX_STEP_S = 100
_MAX_VIOLATIONS = 20
_SEPARATOR = " ¦ "
_SQL = (
    "SELECT ¦ FROM ¦ WHERE ¦ ( ¦ ) ¦ (((( ¦ ' ¦ \" ¦ ` ¦ ; ¦ -- ¦ /* ¦ */ ¦ /*! ¦ , ¦ * ¦ "
    "NULL ¦ 1e999 ¦ 0x ¦ 99999999999999999999 ¦ - ¦ / 0 ¦ LIKE '%_\\' ¦ REGEXP '(a+)+' ¦ "
    "CASE WHEN ¦ UNION ALL ¦ GROUP BY ¦ HAVING ¦ ORDER BY ¦ LIMIT -1 ¦ JOIN ¦ CAST( ¦ "
    "INTERVAL 1 DAY ¦ @x := ¦ ? ¦ :a ¦ %s ¦ {} ¦ \\ ¦ DROP TABLE ¦ ALTER TABLE ¦ ADD COLUMN ¦ "
    "MODIFY ¦ DEFAULT ¦ NOT NULL ¦ DATE ¦ TIME ¦ DECIMAL(5,2) ¦ CURRENT_TIMESTAMP ¦ "
    "CREATE TABLE t AS ¦ INSERT INTO ¦ VALUES (1, 'x') ¦ UPDATE ¦ SET ¦ DELETE FROM ¦ PRAGMA ¦ "
    "ATTACH ¦ sqlite_master ¦ COUNT( ¦ GROUP_CONCAT( ¦ OVER ( ¦ WITH RECURSIVE ¦ SLEEP(0.01) ¦ "
    "REPEAT('x', 100000) ¦ LOCATE( ¦ AS ¦ START TRANSACTION ¦ ROLLBACK ¦ # ¦ # of x ¦ b'1' ¦ "
    "x'ff' ¦ JSON_EXTRACT( ¦ BINARY ¦ ~ ¦ DIV"
)
_SHELL = (
    "cd ¦ /srv ¦ echo ¦ $( ¦ ) ¦ ` ¦ ' ¦ \" ¦ | ¦ || ¦ && ¦ & ¦ ; ¦ > ¦ >> ¦ < ¦ <<EOF ¦ EOF ¦ "
    "\n ¦ { ¦ } ¦ ( ¦ (( ¦ )) ¦ [[ ¦ ]] ¦ if ¦ then ¦ fi ¦ while read x; do ¦ done ¦ exec ¦ "
    "exit ¦ kill $$ ¦ trap '' EXIT ¦ set -e ¦ set -u ¦ unset PATH ¦ export ¦ alias ¦ eval ¦ "
    "rm -rf ¦ /etc/passwd ¦ mkdir ¦ ln -s ¦ chmod 0 ¦ chown 9 ¦ * ¦ ~ ¦ {1..99} ¦ ${x:- ¦ "
    "$((1/0)) ¦ $RANDOM ¦ \\ ¦ ! ¦ !! ¦ exec 3>&1 ¦ >&- ¦ </dev/zero ¦ head -c 1M ¦ "
    "sleep 0.1 & ¦ wait ¦ su nobody ¦ python3 -c ¦ \x03 ¦ \x04 ¦ \t ¦ \r ¦ \x7f"
)
_ANSWER = (
    "#### ¦ \\boxed{ ¦ } ¦ answer is ¦ Answer: ¦ = ¦ 1e999 ¦ - ¦ . ¦ , ¦ / ¦ \xb2 ¦ \u0661 ¦ "
    "inf ¦ nan ¦ 0 ¦ 1 ¦ 99999999999999999999999999999999999999999999999999 ¦ and ¦ or ¦ % ¦ "
    "$ ¦ \\frac{1}{0} ¦ \n ¦ not ¦ x10^ ¦ million ¦ ( ¦ )"
)


@dataclass(frozen=True)
class Case:
    """An environment to fuzz: the limit of a step, its language, and the attacks.

    `pieces`: parts of the language. `wrap`: makes an action of a text in it.
    """

    env: TextEnv[Any]
    limit_s: float
    pieces: list[str]
    wrap: Callable[[str], str]
    attacks: tuple[str, ...]


def make_case(name: str, backend: str) -> Case:
    """Returns the environment of a name, in which mistakes cost a turn only."""
    suite = {"db_bench": "sql", "os": "shell"}.get(name, "answers")
    attacks = tuple(
        message
        for attack in ATTACKS[suite]
        if attack.topic.name != "time"
        for message in attack.messages
    )
    if name == "arithmetic":
        arithmetic = ArithmeticEnv(
            ("addition", "subtraction", "multiplication"), (1, 6), max_turns=4, invalid_ends=False
        )
        return Case(arithmetic, 0.0, _ANSWER.split(_SEPARATOR), str, attacks)
    if name == "gsm8k":
        return Case(
            GSM8KEnv(max_turns=4, invalid_ends=False), 0.0, _ANSWER.split(_SEPARATOR), str, attacks
        )
    if name == "os":
        shell = OSInteractionEnv(
            sandbox=backend,  # type: ignore[arg-type]
            limits=SMALL,
            command_timeout_s=COMMAND_TIMEOUT_S,
            max_turns=12,
            invalid_ends=False,
        )
        return Case(shell, COMMAND_TIMEOUT_S, _SHELL.split(_SEPARATOR), command_action, attacks)
    database = DBBenchEnv(
        database=backend,
        statement_timeout_s=STATEMENT_TIMEOUT_S,
        max_database_mib=4,
        max_turns=8,
        invalid_ends=False,
        timeout_ends=False,
    )
    return Case(database, STATEMENT_TIMEOUT_S, _SQL.split(_SEPARATOR), operation_action, attacks)


class ActionMaker:
    """Makes actions for the present task of an environment."""

    def __init__(self, case: Case, rng: random.Random) -> None:
        self._case = case
        self._rng = rng

    def make(self) -> tuple[str, str]:
        """Returns the kind of an action, and the action."""
        kind = self._rng.choices(
            ("text", "sample", "pieces", "oracle", "spliced", "attack"), (1, 1, 3, 12, 2, 0.4)
        )[0]
        if kind == "text":
            return kind, self._random_text()
        if kind == "sample":
            return kind, self._case.env.action_space.sample()
        if kind == "pieces":
            return kind, self._pieces()
        attack = self._rng.choice(self._case.attacks)
        if kind == "attack":
            return kind, self._mutate(attack)
        env = self._case.env
        oracle = self._rng.choice(env.oracle_actions(env.task))
        if kind == "oracle":
            return kind, self._mutate(oracle)
        return kind, self._cut(oracle) + self._cut(attack)[-2000:]

    def _random_text(self) -> str:
        ranges = (
            (1, 0x80),
            (0x80, 0x3000),
            (0xD800, 0xE000),
            (0x1F000, 0x1FFFF),
            (0xFE00, 0x10000),
        )
        length = self._rng.choice((0, 3, 50, 2000))
        return "".join(chr(self._rng.randrange(*self._rng.choice(ranges))) for _ in range(length))

    def _pieces(self) -> str:
        names = (*self._case.pieces, *self._case.env.task.instruction.split())
        text = " ".join(self._rng.choices(names, k=self._rng.randint(1, 16)))
        return self._case.wrap(text)

    def _cut(self, text: str) -> str:
        return text[: self._rng.randrange(len(text) + 1)]

    def _mutate(self, text: str) -> str:
        """Returns `text` with up to four parts cut, doubled, swapped or put in."""
        rng = self._rng
        for _ in range(rng.randint(0, 4)):
            i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            j = min(j, i + 12)
            kind = rng.randrange(6)
            if kind == 0:
                text = text[:i] + text[j:]
            elif kind == 1:
                text = text[:j] + text[i:]
            elif kind == 2:
                text = f"{text[:i]} {rng.choice(self._case.pieces)} {text[i:]}"
            elif kind == 3:
                text = text[:i] + chr(rng.randrange(1, 0x3000)) + text[i:]
            elif kind == 4:
                text = text[:i] + text[i:j].swapcase() + text[j:]
            else:
                number = rng.choice(("-1", "0", "99999999999", "1e400", "'x'", "NULL"))
                text = text[:i] + number + text[j:]
        return text


class NoEndError(Exception):
    """A step has not come back."""


@contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """Raises NoEndError in the main thread after so long."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise NoEndError(f"no end after {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def find_violation(case: Case, action: str, slowest: list[float]) -> str | None:
    """Carries out an action, with a time limit of its own; returns what did not hold."""
    before_s = cpu_seconds()
    try:
        with bounded(_MAX_STEP_S):
            observation = case.env.step(action)[0]
    except EnvFault as fault:
        return f"EnvFault: {fault!s:.300}"
    except Exception as error:  # the question is whether there is any
        return f"{type(error).__name__}: {error!s:.300}"
    seconds = cpu_seconds() - before_s
    slowest[0] = max(slowest[0], seconds)
    if seconds > case.limit_s + CPU_SLACK_S:
        return f"{seconds:.1f} s of processor time"
    if not case.env.observation_space.contains(observation):
        return f"not in the space: {observation!r:.100}"
    if "Traceback" in observation and case.wrap is operation_action and "Traceb" not in action:
        return f"shows {observation!r:.300}"
    return None


def fuzz(case: Case, num_actions: int, seed: int) -> dict[str, Any]:
    """Plays `num_actions` actions and returns the counts; writes violations as they come."""
    rng = random.Random(seed)
    maker = ActionMaker(case, rng)
    env, slowest, start_s = case.env, [0.0], time.monotonic()
    kinds: collections.Counter[str] = collections.Counter()
    outcomes: collections.Counter[str] = collections.Counter()
    num_violations = 0
    env.action_space.seed(seed)
    env.reset(seed=seed)
    for position in range(num_actions):
        kind, action = maker.make()
        violation = find_violation(case, action, slowest)
        kinds[kind] += 1
        if violation is not None:
            num_violations += 1
            line = {"seed": seed, "position": position, "task": env.task.task_id}
            line |= {"violation": violation, "action": action[:3000]}
            sys.stderr.write(json.dumps(line) + "\n")
            sys.stderr.flush()
            if num_violations >= _MAX_VIOLATIONS:
                break
        if env.outcome != "ongoing":
            outcomes[env.outcome] += 1
            env.reset()
    return {
        "actions": sum(kinds.values()),
        "kinds": dict(kinds),
        "outcomes": dict(outcomes),
        "slowest_cpu_s": round(slowest[0], 2),
        "seconds": round(time.monotonic() - start_s),
        "violations": num_violations,
    }


def main() -> None:
    """Fuzzes what the command line names. Exit status: 1 where something did not hold."""
    parser = argparse.ArgumentParser(description="Random and mutated actions.")
    parser.add_argument("--env", choices=["arithmetic", "gsm8k", "db_bench", "os"], required=True)
    parser.add_argument("--backend", help="a database (sqlite) or a sandbox (auto)")
    parser.add_argument("--num-actions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    default = {"db_bench": "sqlite", "os": "auto"}.get(options.env, "none")
    backend = options.backend or default
    case = make_case(options.env, backend)
    counts = fuzz(case, options.num_actions, options.seed)
    case.env.close()
    name = backend.partition("://")[0]  # an address may hold a password
    print(json.dumps({"env": options.env, "backend": name, "seed": options.seed, **counts}))
    sys.exit(1 if counts["violations"] else 0)


if __name__ == "__main__":
    main()
