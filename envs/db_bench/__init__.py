"""DB-bench: SQL tasks on SQLite, MySQL or MariaDB, from LifelongAgentBench and AgentBench."""
