"""MySQL's expressions as SQLite text with types."""
