"""What a run will cost in time, and what it has cost in energy."""
