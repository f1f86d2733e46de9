"""LifelongAgentBench's 29 shell skills, and those that a script shows."""

import re
from collections.abc import Iterable

from agentpeft.envs.tasks.skill_generator import sort_skills

SKILLS = (
    "addgroup",
    "awk",
    "cat",
    "cd",
    "chage",
    "chgrp",
    "chmod",
    "chown",
    "chsh",
    "cp",
    "echo",
    "exit",
    "find",
    "gpasswd",
    "grep",
    "groupadd",
    "ln",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sed",
    "sleep",
    "tee",
    "touch",
    "useradd",
    "usermod",
    "vi",
    "wc",
)
"""The names of the skills, which are commands; tasks list theirs in this order."""

_LITERAL = re.compile(r"'[^']*'|\"(?:[^\"\\$`]|\\.)*\"|(?m:(?:^|\s)#.*$)|\\\n")
_COMMAND = re.compile(
    r"(?=(?:^|[\n;|&(`{]|\b(?:do|then|else|if|while|until|xargs|sudo|exec|time)\s|-exec\s|!\s)"
    r"\s*(?:\w+=\S*\s+)*(?:/\S*/)?([a-z]+)(?=[\s;|&)`]|$))"
)


def check_skills(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names once each, in the order of `SKILLS`. Raises: SettingsError."""
    return sort_skills(names, SKILLS)


def detect_skills(script: str) -> tuple[str, ...]:
    """Returns the skills whose commands a bash script has where commands stand.

    A reading of the text, not a shell's: what is built at run time is not seen.

    >>> detect_skills("cd /srv && find . -name '*.txt' | xargs grep -l 'rm' | wc -l")
    ('cd', 'find', 'grep', 'wc')
    """
    commands = set(_COMMAND.findall(_LITERAL.sub(" '' ", script)))
    return tuple(skill for skill in SKILLS if skill in commands)
