"""Terms that the learner adds to an episode's reward; what the environment gave stays as it is."""


def soft_overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """Returns what an episode of `num_tokens` sampled tokens loses, from 0 to 1.

    Nothing up to `max_tokens - buffer_tokens`, all of it from `max_tokens` on, and in between a
    share that rises linearly. Of 100 and 20, 85 tokens: 0.25.
    Source: Yu et al. 2025 (DAPO), eq. 13.
    """
    return min(max((num_tokens - max_tokens + buffer_tokens) / buffer_tokens, 0.0), 1.0)
