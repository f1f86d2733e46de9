"""Whether an episode of DB-bench is a success."""
