"""Environments played by tool calls: tools, and an episode of calls."""
