"""The learner's penalty for overlong episodes; the environment's own rewards stay as they are."""

from agentpeft.policies.settings.config import TrainingSettings


def overlong_penalty(num_tokens: int, training: TrainingSettings) -> float:
    """Returns what the settings take from the reward of an episode of `num_tokens` sampled ones."""
    limit = training.overlong_tokens
    if limit is None:
        return 0.0
    buffer = training.overlong_buffer_tokens or max(1, limit // 5)
    return training.overlong_penalty * soft_overlong_penalty(num_tokens, limit, buffer)


def soft_overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """Returns what an episode of `num_tokens` sampled tokens loses, from 0 to 1.

    Nothing up to `max_tokens - buffer_tokens`, all of it from `max_tokens` on, and in between a
    share that rises linearly. Of 100 and 20, 85 tokens: 0.25.
    Source: Yu et al. 2025 (DAPO), eq. 13.
    """
    return min(max((num_tokens - max_tokens + buffer_tokens) / buffer_tokens, 0.0), 1.0)
