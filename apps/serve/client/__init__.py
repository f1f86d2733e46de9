"""`AgentPEFT/Remote-v0`: an environment on a server that `agentpeft serve` has started."""
