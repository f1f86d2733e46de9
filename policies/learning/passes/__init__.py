"""The model's passes over an update: what is laid out how, run, and shared out."""
