"""Settings of runs in `word_env` with the small built-in model, which has learnt arithmetic."""

import word_env  # noqa: F401 (it registers the environment)
from small_model import SMALL

from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

ARITHMETIC = "environment.id=AgentPEFT/Arithmetic-v0"


def make_settings(*overrides: str) -> Settings:
    words = (*SMALL, "env_runners.max_new_tokens=30", "environment.id=Tests/Word-v0")
    return Settings(**with_overrides({}, (*words, *overrides)))
