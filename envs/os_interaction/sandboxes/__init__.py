"""Sandboxes for shell tasks: bubblewrap (no daemon) and docker behind one protocol."""
