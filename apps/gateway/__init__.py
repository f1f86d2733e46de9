"""A user's program in place of our own loop: `agentpeft gateway`."""
