"""Episodes played once more (`agentpeft replay`), or by hand (`agentpeft play`)."""
