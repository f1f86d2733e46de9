"""Environments as a service: what `launch/serve.py` runs."""
