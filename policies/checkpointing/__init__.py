"""A run's checkpoints: saving, restoring, which is the best, and the history of its rewards."""
