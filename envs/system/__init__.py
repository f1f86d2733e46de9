"""The suite's doors to the machine: other programs and docker."""
