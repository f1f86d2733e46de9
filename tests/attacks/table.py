"""Writes docs/environments/attacks.md from the attacks themselves.

python tests/attacks/table.py
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import answer_attacks
import shell_exhaustion
import shell_grading
import shell_reach
import shell_verdicts
import sql_exhaustion
import sql_grading
import sql_reach
from attack import Attack, Game, Topic

PAGE = Path(__file__).parents[2] / "docs" / "environments" / "attacks.md"
ATTACKS: dict[str, list[Attack]] = {
    "sql": [*sql_exhaustion.ATTACKS, *sql_reach.ATTACKS, *sql_grading.ATTACKS],
    "shell": [
        *shell_exhaustion.ATTACKS,
        *shell_reach.ATTACKS,
        *shell_grading.ATTACKS,
        *shell_verdicts.ATTACKS,
    ],
    "answers": answer_attacks.ATTACKS,
}
"""All attacks, by the suite that plays them."""
_ENVS: dict[Game, str] = {"arithmetic": "Arithmetic", "gsm8k": "GSM8K"}
_HEAD = """\
# Attacks

What agents may try, and what holds. `make test-attacks` plays every entry on every backend and sandbox:
{num_sql} on each database of DB-bench, {num_shell} in each sandbox of OS-interaction, {num_answers} on Arithmetic and GSM8K.
`benchmarks/env_fuzz.py` mutates them, and in `benchmarks/soak.py` every tenth episode is one. This page is made from the
entries by `python tests/attacks/table.py`.

**Each entry must end so**: no exception and no fault leaves `step`; every observation is in its space, and shows neither a path or name
of the machinery, nor a word that is hidden in another episode and on the host; no step takes over a second of processor time more than its limit, which a shell's command has on each core (four where many processes
press for memory: the kernel counts its own work for them in arrears); the
outcome is not success; afterwards the host's file, process, sockets and kernel settings are as they were, and an innocent episode of the same
environment succeeds, with no descriptor and no process more than before.

**An entry** is a name and what the agent sends, in the table of its class (`tests/attacks/sql_*.py`, `shell_*.py`, `answer_attacks.py`):
a text is one turn, a list several; `Try` names another task, or what must be shown. It may only take what the host can spare for a second, should a
limit not hold, and reach only for what `tests/attacks/host.py` puts there.

    "sleep in a condition": "SELECT * FROM n WHERE SLEEP(1)",
    "no execution": ["set -n", "echo x"],
    "another mode": Try("chmod 644 /srv/answer", task="state"),

What is *not* protected against is on the pages of the [databases](db_bench.md#databases) and the [sandboxes](os_sandboxes.md).
"""


def render_page() -> str:
    """Returns the page."""
    counts = {f"num_{suite}": len(attacks) for suite, attacks in ATTACKS.items()}
    return "\n".join(
        [
            _HEAD.format(**counts),
            "## By SQL, in DB-bench",
            *_rows(ATTACKS["sql"], {"sqlite": "`sqlite`", "server": "`mysql`, `docker`"}),
            "",
            "## By a shell, in OS-interaction",
            *_rows(ATTACKS["shell"], {"bubblewrap": "`bubblewrap`", "docker": "`docker`"}),
            "",
            "## By an answer, in Arithmetic and GSM8K",
            *_rows(ATTACKS["answers"], {"": "what holds"}),
            "",
        ]
    )


def _rows(attacks: Sequence[Attack], columns: dict[str, str]) -> Iterable[str]:
    yield f"| class | entries | what is tried | {' | '.join(columns.values())} |"
    yield f"|---|---|---|{'---|' * len(columns)}"
    topics: dict[str, list[Topic]] = {}
    for attack in attacks:
        topics.setdefault(attack.topic.name, []).append(attack.topic)
    for name, entries in topics.items():
        topic = entries[0]
        where = f" ({_ENVS[topic.game]})" if topic.game in _ENVS else ""
        held = " | ".join(topic.holds[column] for column in columns)
        yield f"| {name}{where} | {len(entries)} | {topic.tried} | {held} |"


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
