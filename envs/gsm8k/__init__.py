"""Grade-school word problems as text: `AgentPEFT/GSM8K-v0`."""
