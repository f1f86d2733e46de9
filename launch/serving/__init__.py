"""Servers: `agentpeft serve`, `agentpeft mcp`, and the engines that runs share."""
