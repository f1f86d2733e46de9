"""What the suite needs of the machine: other programs, docker, files and temporary folders."""
