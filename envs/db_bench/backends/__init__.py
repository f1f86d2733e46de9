"""The databases that DB-bench is played on, behind one protocol."""
