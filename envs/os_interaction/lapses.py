"""Gold commands in which some words of the instruction are not heeded.

As `agentpeft.envs.db_bench.lapses` does for SQL: where a command makes a choice that the words
decide, a lapse writes the commonest choice instead.
"""

import re
from functools import partial
from random import Random

_CHOICES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), commonest)
    for pattern, commonest in (
        (r"\b(mkdir|rm|cp|chown|chgrp|useradd|tee) -[pRram](?= [^0-9])", r"\1"),
        (r"\bls -[At]\b", "ls"),
        (r">>", ">"),
        (r"\bwc -[wc]\b", "wc -l"),
        (r"\bgrep -[vcl]w\b", "grep -w"),
        (r"\bchmod [ago]+[-+][rwx]\b", "chmod u+x"),
        (r"\busermod -[gdc](?= )", "usermod -s"),
        (r"\bchage -[mWI](?= )", "chage -M"),
        (r"\bgpasswd -[dA](?= )", "gpasswd -a"),
    )
)


def write_with_lapses(commands: str, share: float, rng: Random) -> str:
    """Returns shell commands in which each choice lapses with probability `share`.

    The commonest choices are: of mkdir, rm, cp, chown, chgrp, useradd, tee and ls no option; to
    overwrite a file; of what wc counts, lines; of what grep finds, lines with the word; of modes,
    u+x; of what usermod changes, the shell; of what chage sets, the days until a password expires;
    of what gpasswd does, to add a member. Names, values and all else stay.
    """
    for pattern, commonest in _CHOICES:
        commands = pattern.sub(partial(_lapse, commonest, share, rng), commands)
    return commands


def _lapse(commonest: str, share: float, rng: Random, match: re.Match[str]) -> str:
    return match.expand(commonest) if rng.random() < share else match[0]
