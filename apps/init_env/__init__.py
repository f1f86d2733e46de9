"""A new environment's files: `agentpeft init-env`."""
