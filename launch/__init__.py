"""Commands that a person runs."""
