"""Grading of OS-interaction episodes."""
