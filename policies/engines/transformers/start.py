"""Starting the transformers engine as a run's settings ask for it."""

from functools import partial

from agentpeft.policies.engines.fusing import merged_state, slot_state
from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
from agentpeft.policies.models.load import choose_serving
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.settings.config import Settings


def start_transformers(
    settings: Settings, base: PolicyBase, chat: ChatFormat
) -> TransformersEngine:
    """Returns an engine over `base`, which is its own from then on. Raises: SettingsError."""
    limits, fuse = settings.env_runners, merged_state
    if choose_serving(settings, base.model.dtype) == "native":
        fuse = partial(slot_state, scaling=attach_lora(base, settings.lora.as_saved()).scaling)
    own = EngineSettings(
        max_concurrent=limits.max_concurrent_episodes,
        max_context_tokens=limits.max_context_tokens,
        deterministic=settings.deterministic,
    )
    return TransformersEngine(base.model, chat.stop_token_ids, own, fuse)
