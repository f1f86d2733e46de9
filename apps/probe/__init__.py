"""Whether an endpoint serves an adapter: `agentpeft probe`."""
