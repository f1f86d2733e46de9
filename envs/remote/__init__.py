"""`AgentPEFT/Remote-v0`: an environment that a server has, as `agentpeft serve` starts one."""
