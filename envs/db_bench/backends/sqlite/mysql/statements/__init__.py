"""MySQL's statements as SQLite statements."""
