"""A run's files as figures, tables and pages."""
