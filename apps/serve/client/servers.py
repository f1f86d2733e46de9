"""The servers of one remote environment, and the choice of one for a new session."""

import math
from collections.abc import Mapping, Sequence
from random import SystemRandom
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

from agentpeft.envs.core.errors import SettingsError, is_number, shown

Urls: TypeAlias = str | Sequence[str] | Mapping[str, float]
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Servers:
    """Addresses with weights. A session's server is random, in proportion to the weights.

    Results do not depend on the server, so this chance needs no seed.
    """

    def __init__(self, urls: Urls, path: str) -> None:
        """`urls`: one, several alike, or a mapping to weights > 0. `path` is the session's.

        Raises: SettingsError.
        """
        if isinstance(urls, str):
            weights: Mapping[str, float] = {urls: 1.0}
        elif isinstance(urls, Mapping):
            weights = urls
        elif isinstance(urls, Sequence) and all(isinstance(url, str) for url in urls):
            weights = dict.fromkeys(urls, 1.0)
        else:
            raise SettingsError(f"url must be an address, a list or a mapping, got {shown(urls)}")
        if not weights:
            raise SettingsError("url names no server")
        self._weights = {_to_socket_url(url, path): weights[url] for url in weights}
        for weight in self._weights.values():
            if not is_number(weight) or weight <= 0:
                raise SettingsError(f"the weight of a url must be > 0, got {shown(weight)}")

    def in_order(self) -> list[str]:
        """Returns all addresses in the order in which to try them, the likelier ones first."""
        chance = SystemRandom()
        keys = {
            url: math.log(1.0 - chance.random()) / weight for url, weight in self._weights.items()
        }
        return sorted(keys, key=keys.__getitem__, reverse=True)


def _to_socket_url(url: object, path: str) -> str:
    """Returns the address of a server's WebSocket. Raises: SettingsError."""
    problem = SettingsError(f"url must be like http://host:8000, got {shown(url)}")
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        is_right = parts is not None and parts.port != 0
    except ValueError:  # a port that there is not, or half an IPv6 address
        raise problem from None
    if not is_right or parts is None or parts.scheme not in _SCHEMES or not parts.hostname:
        raise problem
    whole = f"{parts.path.rstrip('/')}/{path}"
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, whole, "", ""))
