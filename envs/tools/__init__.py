"""Environments played by tool calls: what the tools are, and an episode of such calls."""
