"""Where an OpenAI-style endpoint is, and its key: both are looked at before anything is asked."""

import os
from urllib.parse import urlsplit

import httpx

from agentpeft.envs import SettingsError

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable with an endpoint's key."""


def check_url(name: str, url: str) -> None:
    """Raises: SettingsError that calls the URL `name`, where no client could ask it."""
    try:
        parts = httpx.URL(url)
        parts.raw_host.decode("ascii").encode("idna")  # as the client does, and fails, later
        has_host = bool(parts.host) and " " not in url and url.isprintable()
        is_right = has_host and urlsplit(url).port != 0 and parts.scheme in ("http", "https")
    except (httpx.InvalidURL, ValueError):  # the latter also for a port above 65535
        is_right = False
    if not is_right:
        raise SettingsError(
            f"{name} must be a URL such as http://localhost:8000/v1, got {url!r:.200}"
        )


def read_key() -> str:
    """Returns the key, "" where none is set. Raises: SettingsError."""
    key = os.environ.get(KEY_VARIABLE, "")
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{KEY_VARIABLE} has characters that no key has")
    return key
