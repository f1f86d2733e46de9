"""Whether an episode of OS-interaction is a success."""
