"""The environments of an env runner: made, called, kept and drawn tasks for."""
