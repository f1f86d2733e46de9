"""The order of play: which group, episode and turn is next, and environments in threads."""
