"""Grading of DB-bench episodes."""
