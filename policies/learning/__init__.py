"""From groups of episodes to better adapter weights."""
