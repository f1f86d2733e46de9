"""The environments of an env runner: making, pooling and calling them, and drawing their tasks."""
