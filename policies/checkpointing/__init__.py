"""What a run saves and restores: its checkpoints, the best of them, what was earned so far."""
