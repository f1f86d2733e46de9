"""How an episode stands or ended: one closed vocabulary for every environment."""

from enum import StrEnum


class Outcome(StrEnum):
    """The value of `info["outcome"]`.

    All but `ONGOING` and `CONTEXT_LIMIT` end an episode with `terminated=True`. `CONTEXT_LIMIT`
    is the caller's: an agent whose context is full ends the episode outside the environment.
    """

    ONGOING = "ongoing"
    SUCCESS = "success"
    FAILURE = "failure"
    INVALID_ACTION = "invalid_action"
    TURN_LIMIT = "turn_limit"
    TIMEOUT = "timeout"
    CONTEXT_LIMIT = "context_limit"
    UNKNOWN = "unknown"
