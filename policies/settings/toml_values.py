"""Values of settings as TOML text."""

import json
import tomllib
from typing import Any


def parse_value(text: str) -> Any:
    """Returns what TOML makes of a value's text; what is no TOML is a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml_value(value: Any) -> str:
    """Returns a value's TOML text, in one line."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {to_toml_value(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
