"""Messages of remote environments beside OpenEnv's protocol, read and written by both sides."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from agentpeft.envs.core.errors import EnvFault, SettingsError, is_number, shown

T = TypeVar("T")

PROTOCOL = 2
"""Grows where an older client or server would misunderstand the other."""


def read_field(answer: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Returns a field of a server's answer. Raises: EnvFault where it is missing or no `kind`."""
    value = answer.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise EnvFault(f"the server answered {shown(answer)}, without {kind.__name__} {name!r}")
    return value


def read_reward(answer: Mapping[str, Any]) -> float:
    """Returns the reward of a server's answer. Raises: EnvFault unless it is a finite number."""
    reward = answer.get("reward")
    if not is_number(reward):
        raise EnvFault(f"the server answered {shown(answer)}, whose reward is no finite number")
    return float(reward)  # type: ignore[arg-type]  # a number, as was just checked


def write_random_state(rng: np.random.Generator) -> dict[str, Any]:
    """Returns a generator's state as JSON. Raises: SettingsError unless it is a PCG64's.

    A draw on the server from this state is the draw that would have been made here.
    """
    state = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        kind = state["bit_generator"]
        raise SettingsError(f"tasks are drawn with numpy's default generator (PCG64), not {kind}")
    return dict(state)


def read_random_state(state: Mapping[str, Any]) -> np.random.Generator:
    """Returns a generator with a saved state. Raises: SettingsError."""
    bits = np.random.PCG64(0)
    try:
        bits.state = state  # type: ignore[assignment]  # numpy checks it
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SettingsError(f"no state of a PCG64: {shown(state)}") from error
    return np.random.Generator(bits)
