"""Training as a tool for agents: its four actions, and the tool over MCP."""
