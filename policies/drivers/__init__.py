"""Other people's trainers on our environments: short adapters that need none of the service."""
