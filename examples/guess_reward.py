"""Rewards for `guess_env`, named in a file of settings as `guess_reward:fewer_tries`."""

from agentpeft.envs import Episode, Outcome


def fewer_tries(episode: Episode) -> float:
    """Returns 1 for the first try, a fifth less for each further one, and 0 for a failure."""
    if episode.outcome is not Outcome.SUCCESS:
        return 0.0
    return 1 - 0.2 * (len(episode.turns) - 1)


def narrows_down(episode: Episode) -> float:
    """Returns a bonus for a guess that was not made before, as a `turn_reward_fn`."""
    guesses = [turn.action for turn in episode.turns]
    return 0.05 if guesses[-1] not in guesses[:-1] else -0.05
