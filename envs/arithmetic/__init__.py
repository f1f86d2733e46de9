"""Arithmetic problems as text: `AgentPEFT/Arithmetic-v0`."""
