"""Serving environments to others: `agentpeft serve` over HTTP and WebSocket, `agentpeft mcp`."""
