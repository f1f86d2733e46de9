"""DB-bench's databases, behind one protocol."""
