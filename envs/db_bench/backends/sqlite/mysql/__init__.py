"""MySQL 8 on SQLite: translation of statements, functions, values and errors.

Not a sandbox by itself: the session adds the authorizer, `setlimit` and the statement timeout.
"""
