"""What tasks an OS generator makes of its skills: the settings that a task's id holds."""

import re
from dataclasses import dataclass

from agentpeft.envs.errors import SettingsError
from agentpeft.envs.splits import Split, check_split

_ID = re.compile(r"(all|[1-9]\d*)(?:;(train|test))?(;i)?")


@dataclass(frozen=True)
class GeneratorOptions:
    """Limits of generated tasks; None is no limit of its own.

    `max_phrasings`: ways to say each thing, plainest first. `invent`: the words are made up, so
    that a small model learns to copy rather than to know a few hundred words by heart.

    `split`: each word is for training or for testing, by its hash. A task's names of files,
    directories, users and groups and the words in its files are of its split alone. Not held out
    are numbers, the top directories and the endings of names.
    """

    max_phrasings: int | None = None
    split: Split | None = None
    invent: bool = False

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        check_split(self.split)
        limit = self.max_phrasings
        if limit is not None and (type(limit) is not int or limit < 1):
            raise SettingsError(f"max_phrasings must be an integer >= 1 or None, got {limit!r}")
        if not isinstance(self.invent, bool):
            raise SettingsError(f"invent must be True or False, got {self.invent!r}")

    @classmethod
    def of_id(cls, text: str) -> "GeneratorOptions | None":
        """Returns the options of an id's middle part; None if it is none's."""
        match = _ID.fullmatch(text)
        if match is None:
            return None
        limit = match[1].removeprefix("all")
        split: Split | None = "test" if match[2] == "test" else "train" if match[2] else None
        return cls(int(limit) if limit else None, split, match[3] is not None)

    def __str__(self) -> str:
        """Returns the middle part of a task's id: "all", "1;test;i"."""
        parts = [str(self.max_phrasings or "all"), self.split, "i" if self.invent else None]
        return ";".join(filter(None, parts))
