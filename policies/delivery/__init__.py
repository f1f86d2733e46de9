"""Adapter versions, and the proof that a runner serves the one that was sent."""
