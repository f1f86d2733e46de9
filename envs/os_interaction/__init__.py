"""OS-interaction: shell tasks in sandboxes, from LifelongAgentBench and AgentBench."""
