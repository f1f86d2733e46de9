"""What a run will cost in time and memory."""
