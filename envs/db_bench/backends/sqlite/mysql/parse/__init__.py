"""From an agent's text to parsed statements, or MySQL's syntax errors."""
