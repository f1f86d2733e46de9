"""DB-bench on SQLite, which looks like MySQL 8 to the agent."""
