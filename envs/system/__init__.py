"""Access to the machine: other programs, docker, files and temporary folders."""
