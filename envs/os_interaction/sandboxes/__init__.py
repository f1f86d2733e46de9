"""Sandboxes for shell tasks."""
