"""Checks of the machine and of the learning code."""
