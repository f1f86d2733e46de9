"""The model's passes over an update's episodes: how they are packed, run and sharded."""
