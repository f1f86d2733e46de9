"""The page of settings names each of them, with its default."""

import re
import tomllib
from pathlib import Path

from agentpeft.policies.settings.config import Settings, setting_names

PAGE = Path(__file__).parents[1] / "docs" / "training" / "settings.md"
ROW = re.compile(r"^\| `([\w.]+)` \| `(.+?)` \|", re.M)


def default_of(name):
    section, _, leaf = name.rpartition(".")
    settings = dict(Settings())
    return dict(settings[section])[leaf] if section else settings[leaf]


def test_the_page_names_every_setting_once():
    names = [name for name, _ in ROW.findall(PAGE.read_text("utf-8"))]
    assert sorted(names) == sorted(setting_names())


def test_the_page_gives_every_default():
    for name, text in ROW.findall(PAGE.read_text("utf-8")):
        value = None if text == "none" else tomllib.loads(f"value = {text}")["value"]
        assert (name, value) == (name, default_of(name))
