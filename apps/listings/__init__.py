"""What there is to choose from: `agentpeft envs` and `agentpeft configs`."""
