"""When what is played: groups and their episodes, turns, and calls of environments in threads."""
