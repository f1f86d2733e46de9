"""Writes the tables of docs/training/settings.md from the settings; `--check` only compares."""

import inspect
import sys
from pathlib import Path

from agentpeft.policies.settings.config import Settings, to_toml_value
from agentpeft.policies.settings.section import Section

PAGE = Path(__file__).parents[1] / "docs" / "training" / "settings.md"
FIRST = "## The run\n"
"""What is written here begins with it; the page's own text stands before."""


def make_tables() -> str:
    """Returns a heading and a table for every section."""
    sections = {
        name: type(field.default)
        for name, field in Settings.model_fields.items()
        if isinstance(field.default, Section)
    }
    parts = [FIRST, *_table(Settings, "", skip=set(sections))]
    for name, section in sections.items():
        about = " ".join(inspect.cleandoc(section.__doc__ or "").split())
        parts += [f"\n## `{name}`\n", f"{about}\n\n", *_table(section, f"{name}.", skip=set())]
    return "".join(parts)


def _table(section: type[Section], prefix: str, skip: set[str]) -> list[str]:
    rows = ["| setting | default | effect |\n", "|---|---|---|\n"]
    for name, field in section.model_fields.items():
        if name not in skip:
            value = field.get_default(call_default_factory=True)
            default = "none" if value is None else to_toml_value(value)
            effect = " ".join((field.description or "").split())
            rows.append(f"| `{prefix}{name}` | `{default}` | {effect} |\n")
    names = [name for name in section.model_fields if name not in skip]
    changeable = [f"`{prefix}{name}`" for name in names if section.may_change(name)]
    listed = "all of them" if len(changeable) == len(names) else ", ".join(changeable)
    return [*rows, *([f"\n`--resume` may change {listed}.\n"] if changeable else [])]


def main() -> int:
    """Returns 1 where the page is not as the settings are, or writes it."""
    text = PAGE.read_text(encoding="utf-8")
    wanted = text[: text.index(FIRST)] + make_tables()
    if "--check" in sys.argv:
        return int(wanted != text)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
