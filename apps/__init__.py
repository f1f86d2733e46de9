"""What is built on the rooms: nothing in `envs`, `policies` or `launch` needs it."""
