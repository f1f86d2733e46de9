"""Shared by every environment: the episode loop, its outcomes, rewards and errors."""
