"""A run: its iterations, which tasks they take, the warm start before, evaluation and callbacks."""
