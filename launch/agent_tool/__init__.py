"""What an agent's training tool is made of, beside its four actions; and the tool over MCP."""
