"""MySQL's statements and expressions as SQLite's: text, with the types of values."""
