"""The course of one training run: its folder, signals, Ray session and metrics."""
