"""Lifelong learning: sequences of stages, methods to learn them, and what is forgotten."""
