"""Episodes in docker containers: `DockerSandbox`."""
